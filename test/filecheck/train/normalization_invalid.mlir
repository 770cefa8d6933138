// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @shape(%dy: tensor<2x4xf32>, %y: tensor<2x8xf32>) {
  // CHECK: train.softmax_grad: dy has shape [2, 4], expected [2, 8]
  %dx = train.softmax_grad %dy, %y {axis = 1 : i64} : (tensor<2x4xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return
}

// -----

func.func @element(%dy: tensor<2x8xf32>, %y: tensor<2x8xf16>) {
  // CHECK: train.log_softmax_grad: dy has elements of type f32, expected f16
  %dx = train.log_softmax_grad %dy, %y {axis = 1 : i64} : (tensor<2x8xf32>, tensor<2x8xf16>) -> tensor<2x8xf16>
  func.return
}

// -----

func.func @axis(%dy: tensor<2x8xf32>) {
  // CHECK: train.softmax_grad: axis 2 is outside of a tensor with 2 dimensions
  %dx = train.softmax_grad %dy, %dy {axis = 2 : i64} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return
}

// -----

func.func @scale(%x: tensor<2x8xf32>, %scale: tensor<1xf32>) {
  // CHECK: train.layer_norm: scale has shape [1], expected [8]
  %y, %mean, %inverse = train.layer_norm %x, %scale {axis = 1 : i64, epsilon = 0.5 : f32} : (tensor<2x8xf32>, tensor<1xf32>) -> (tensor<2x8xf32>, tensor<2x1xf32>, tensor<2x1xf32>)
  func.return
}

// -----

func.func @statistic(%x: tensor<2x8xf32>, %scale: tensor<8xf32>) {
  // CHECK: train.rms_norm: inverse has shape [2], expected [2, 1]
  %y, %inverse = train.rms_norm %x, %scale {axis = 1 : i64, epsilon = 0.5 : f32} : (tensor<2x8xf32>, tensor<8xf32>) -> (tensor<2x8xf32>, tensor<2xf32>)
  func.return
}

// -----

func.func @dbias(%x: tensor<2x8xf32>, %scale: tensor<8xf32>, %s: tensor<2x1xf32>) {
  // CHECK: train.layer_norm_grad: dbias has shape [2], expected [8]
  %dx, %ds, %db = train.layer_norm_grad %x, %x, %scale, %s, %s {axis = 1 : i64, epsilon = 0.5 : f32} : (tensor<2x8xf32>, tensor<2x8xf32>, tensor<8xf32>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x8xf32>, tensor<8xf32>, tensor<2xf32>)
  func.return
}

// -----

func.func @dscale(%x: tensor<2x8xf32>, %scale: tensor<8xf32>, %s: tensor<2x1xf32>) {
  // CHECK: train.rms_norm_grad: dscale has elements of type f16, expected f32
  %dx, %ds = train.rms_norm_grad %x, %x, %scale, %s {axis = 1 : i64, epsilon = 0.5 : f32} : (tensor<2x8xf32>, tensor<2x8xf32>, tensor<8xf32>, tensor<2x1xf32>) -> (tensor<2x8xf32>, tensor<8xf16>)
  func.return
}

// -----

func.func @approximate(%x: tensor<2x8xf32>) {
  // CHECK: train.gelu_grad: approximate is "sigmoid", expected "none" or "tanh"
  %dx = train.gelu_grad %x, %x {approximate = "sigmoid"} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return
}

// -----

func.func @swish(%x: tensor<2x8xf32>) {
  // CHECK: train.swish_grad: dx has shape [8, 2], expected [2, 8]
  %dx = train.swish_grad %x, %x {alpha = 1.0 : f32} : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x2xf32>
  func.return
}
