// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @state(%p: tensor<4xf32>, %g: tensor<4xf32>, %m: tensor<4xf16>) {
  // CHECK: train.lion: exp_avg has elements of type f16, expected f32
  %a, %b = train.lion %p, %g, %m {learning_rate = 0.1 : f64, weight_decay = 0.2 : f64, beta1 = 0.9 : f64, beta2 = 0.99 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf16>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @squares(%p: tensor<4xf16>, %g: tensor<4xf16>, %s: tensor<f16>) {
  // CHECK: train.lamb: parameter_squares has elements of type f16, expected f32
  %a = train.lamb %p, %g, %s, %s {learning_rate = 0.1 : f64} : (tensor<4xf16>, tensor<4xf16>, tensor<f16>, tensor<f16>) -> tensor<4xf16>
  func.return
}

// -----

func.func @momentum(%m: tensor<4x4xf32>, %g: tensor<4x4xf32>) {
  // CHECK: train.muon_momentum: momentum is 1.0, expected less than 1
  %a, %b = train.muon_momentum %m, %g {momentum = 1.0 : f64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
  func.return
}

// -----

func.func @vector(%x: tensor<4xf32>) {
  // CHECK: train.orthogonalize: x has 1 dimensions, a matrix has 2
  %a = train.orthogonalize %x {steps = 5 : i64, a = 1.0 : f64, b = 1.0 : f64, c = 1.0 : f64, epsilon = 1.0 : f64} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @given(%p: tensor<4xf32>, %g: tensor<4xf32>, %s: tensor<f32>, %d: tensor<f64>) {
  // CHECK: train.lamb: 'weight_decay' cannot be given as an operand; those that can are learning_rate
  %a = train.lamb %p, %g, %s, %s, %d {learning_rate = 0.1 : f64, given = ["weight_decay"]} : (tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>, tensor<f64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @sums(%g: tensor<4xf32>) {
  // CHECK: train.factor_sums: gradient has 1 dimensions, a matrix has 2
  %a, %b = train.factor_sums %g : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @shapes(%p: tensor<4x6xf32>, %r: tensor<4x1xf32>, %c: tensor<1x5xf32>, %n: tensor<1x1xf32>) {
  // CHECK: train.factored_direction: shapes {{.*}} differ
  %d = train.factored_direction %p, %r, %c, %n {count = 4.0 : f64, epsilon = 1.0 : f64} : (tensor<4x6xf32>, tensor<4x1xf32>, tensor<1x5xf32>, tensor<1x1xf32>) -> tensor<4x6xf32>
  func.return
}

// -----

func.func @block(%m: tensor<4x16xf32>) {
  // CHECK: train.quantize_state: the last of the sizes [4, 16] is no multiple of block, 5
  %a, %b = train.quantize_state %m {block = 5 : i64} : (tensor<4x16xf32>) -> (tensor<4x16xui8>, tensor<4x3xf32>)
  func.return
}

// -----

func.func @scales(%c: tensor<4x16xui8>, %s: tensor<4x3xf32>) {
  // CHECK: train.dequantize_state: scales has shape [4, 3], expected [4, 2]
  %a = train.dequantize_state %c, %s {block = 8 : i64} : (tensor<4x16xui8>, tensor<4x3xf32>) -> tensor<4x16xf32>
  func.return
}

// -----

func.func @rows(%g: tensor<4x16xf32>, %r: tensor<4x1xf32>, %c: tensor<1x16xf32>, %t: tensor<1x1xf32>) {
  // CHECK: train.factored_direction: its formula divides by an attribute that is 0; give another number
  %a = train.factored_direction %g, %r, %c, %t {count = 0.0 : f64, epsilon = 1.0e-30 : f64} : (tensor<4x16xf32>, tensor<4x1xf32>, tensor<1x16xf32>, tensor<1x1xf32>) -> tensor<4x16xf32>
  func.return
}
