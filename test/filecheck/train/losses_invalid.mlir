// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @shape(%x: tensor<2x3x5xf32>, %l: tensor<2x5xi64>) {
  // CHECK: train.cross_entropy: labels has shape [2, 5], expected [2, 3]
  %y = train.cross_entropy %x, %l : (tensor<2x3x5xf32>, tensor<2x5xi64>) -> tensor<f32>
  func.return
}

// -----

func.func @labels(%x: tensor<2x5xf32>, %l: tensor<2xf32>) {
  // CHECK: train.cross_entropy: labels has elements of type f32, expected i32 or i64
  %y = train.cross_entropy %x, %l : (tensor<2x5xf32>, tensor<2xf32>) -> tensor<f32>
  func.return
}

// -----

func.func @logits(%x: tensor<2x5xi64>, %l: tensor<2xi64>) {
  // CHECK: train.cross_entropy: logits has elements of type i64, expected floats
  %y = train.cross_entropy %x, %l : (tensor<2x5xi64>, tensor<2xi64>) -> tensor<f32>
  func.return
}

// -----

func.func @loss(%x: tensor<2x5xf16>, %l: tensor<2xi64>) {
  // CHECK: train.cross_entropy: loss has elements of type f16, expected f32
  %y = train.cross_entropy %x, %l : (tensor<2x5xf16>, tensor<2xi64>) -> tensor<f16>
  func.return
}

// -----

func.func @divisor(%x: tensor<2x5xf32>, %l: tensor<2xi64>) {
  // CHECK: train.cross_entropy: divisor must be positive
  %y = train.cross_entropy %x, %l {divisor = 0 : i64} : (tensor<2x5xf32>, tensor<2xi64>) -> tensor<f32>
  func.return
}

// -----

func.func @gradient(%d: tensor<1xf32>, %x: tensor<2x5xf32>, %l: tensor<2xi64>) {
  // CHECK: train.cross_entropy_grad: dloss has shape [1], expected []
  %y = train.cross_entropy_grad %d, %x, %l : (tensor<1xf32>, tensor<2x5xf32>, tensor<2xi64>) -> tensor<2x5xf32>
  func.return
}

// -----

func.func @maximum(%x: tensor<2x5xf16>) {
  // CHECK: train.logit_maximum: maximum has elements of type f16, expected f32
  %y = train.logit_maximum %x : (tensor<2x5xf16>) -> tensor<2xf16>
  func.return
}

// -----

func.func @classes(%m: tensor<2xf32>, %l: tensor<2xi64>) {
  // CHECK: train.cross_entropy_sum: classes must be positive
  %y = train.cross_entropy_sum %m, %m, %m, %l {classes = 0 : i64} : (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xi64>) -> tensor<f32>
  func.return
}

// -----

func.func @steps(%d: tensor<f32>, %x: tensor<2x5xf32>, %l: tensor<2xi64>, %m: tensor<2x1xf32>) {
  // CHECK: train.cross_entropy_part_grad: maximum has shape [2, 1], expected [2]
  %y = train.cross_entropy_part_grad %d, %x, %l, %m, %m : (tensor<f32>, tensor<2x5xf32>, tensor<2xi64>, tensor<2x1xf32>, tensor<2x1xf32>) -> tensor<2x5xf32>
  func.return
}
