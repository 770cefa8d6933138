// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @lion(%p: tensor<4x6xf32>, %g: tensor<4x6xbf16>, %m: tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  // CHECK: %a, %am = train.lion %p, %g, %m {learning_rate = 1.000000e-01 : f64, weight_decay = 2.000000e-01 : f64, beta1 = 9.000000e-01 : f64, beta2 = 9.900000e-01 : f64} : (tensor<4x6xf32>, tensor<4x6xbf16>, tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>)
  %a, %am = train.lion %p, %g, %m {learning_rate = 0.1 : f64, weight_decay = 0.2 : f64, beta1 = 0.9 : f64, beta2 = 0.99 : f64} : (tensor<4x6xf32>, tensor<4x6xbf16>, tensor<4x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>)
  func.return %a, %am : tensor<4x6xf32>, tensor<4x6xf32>
}

func.func @lamb(%p: tensor<4x6xf32>, %g: tensor<4x6xbf16>, %m: tensor<4x6xf32>, %v: tensor<4x6xf32>, %t: tensor<i64>) -> tensor<4x6xf32> {
  // CHECK: %r, %rm, %rv = train.lamb_direction %p, %g, %m, %v, %t {weight_decay = 2.000000e-01 : f64, beta1 = 9.000000e-01 : f64, beta2 = 9.900000e-01 : f64, epsilon = 1.000000e-06 : f64}
  %r, %rm, %rv = train.lamb_direction %p, %g, %m, %v, %t {weight_decay = 0.2 : f64, beta1 = 0.9 : f64, beta2 = 0.99 : f64, epsilon = 1.0e-6 : f64} : (tensor<4x6xf32>, tensor<4x6xbf16>, tensor<4x6xf32>, tensor<4x6xf32>, tensor<i64>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>)
  %pp = train.square_sum %p : (tensor<4x6xf32>) -> tensor<f32>
  %rr = train.square_sum %r : (tensor<4x6xf32>) -> tensor<f32>
  // CHECK: %b = train.lamb %p, %r, %pp, %rr {learning_rate = 1.000000e-01 : f64} : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>, tensor<f32>) -> tensor<4x6xf32>
  %b = train.lamb %p, %r, %pp, %rr {learning_rate = 0.1 : f64} : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>, tensor<f32>) -> tensor<4x6xf32>
  func.return %b : tensor<4x6xf32>
}

func.func @muon(%p: tensor<4x6xf32>, %g: tensor<4x6xbf16>, %m: tensor<4x6xf32>) -> tensor<4x6xf32> {
  // CHECK: %d, %dm = train.muon_momentum %m, %g {momentum = 9.000000e-01 : f64, nesterov} : (tensor<4x6xf32>, tensor<4x6xbf16>) -> (tensor<4x6xf32>, tensor<4x6xf32>)
  %d, %dm = train.muon_momentum %m, %g {momentum = 0.9 : f64, nesterov} : (tensor<4x6xf32>, tensor<4x6xbf16>) -> (tensor<4x6xf32>, tensor<4x6xf32>)
  // CHECK: %o = train.orthogonalize %d {steps = 5 : i64, a = 3.444500e+00 : f64, b = -4.775000e+00 : f64, c = 2.031500e+00 : f64, epsilon = 1.000000e-07 : f64} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %o = train.orthogonalize %d {steps = 5 : i64, a = 3.4445 : f64, b = -4.775 : f64, c = 2.0315 : f64, epsilon = 1.0e-7 : f64} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  // CHECK: %c = train.muon %p, %o {learning_rate = 1.000000e-01 : f64, weight_decay = 2.000000e-01 : f64, scale = 5.000000e-01 : f64}
  %c = train.muon %p, %o {learning_rate = 0.1 : f64, weight_decay = 0.2 : f64, scale = 0.5 : f64} : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  func.return %c : tensor<4x6xf32>
}

func.func @adafactor(%p: tensor<4x6xf32>, %g: tensor<4x6xbf16>, %r: tensor<4x1xf32>, %c: tensor<1x6xf32>, %n: tensor<1x1xf32>, %s: tensor<f32>, %t: tensor<i64>) -> tensor<4x6xf32> {
  // CHECK: %rows, %columns = train.factor_sums %g : (tensor<4x6xbf16>) -> (tensor<4x1xf32>, tensor<1x6xf32>)
  %rows, %columns = train.factor_sums %g : (tensor<4x6xbf16>) -> (tensor<4x1xf32>, tensor<1x6xf32>)
  // CHECK: %row = train.second_moment %r, %rows, %t {count = 6.000000e+00 : f64, beta2_decay = -8.000000e-01 : f64}
  %row = train.second_moment %r, %rows, %t {count = 6.0 : f64, beta2_decay = -0.8 : f64} : (tensor<4x1xf32>, tensor<4x1xf32>, tensor<i64>) -> tensor<4x1xf32>
  // CHECK: %d = train.factored_direction %g, %row, %c, %n {count = 4.000000e+00 : f64, epsilon = 1.000000e-08 : f64}
  %d = train.factored_direction %g, %row, %c, %n {count = 4.0 : f64, epsilon = 1.0e-8 : f64} : (tensor<4x6xbf16>, tensor<4x1xf32>, tensor<1x6xf32>, tensor<1x1xf32>) -> tensor<4x6xf32>
  // CHECK: %a = train.adafactor %p, %d, %s, %s, %t {learning_rate = 1.000000e-01 : f64, weight_decay = 0.000000e+00 : f64, clip_threshold = 1.000000e+00 : f64, epsilon = 1.000000e-03 : f64, count = 2.400000e+01 : f64, relative_step}
  %a = train.adafactor %p, %d, %s, %s, %t {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, clip_threshold = 1.0 : f64, epsilon = 1.0e-3 : f64, count = 24.0 : f64, relative_step} : (tensor<4x6xf32>, tensor<4x6xf32>, tensor<f32>, tensor<f32>, tensor<i64>) -> tensor<4x6xf32>
  func.return %a : tensor<4x6xf32>
}

func.func @states(%m: tensor<4x16xf32>) -> tensor<4x16xf32> {
  // CHECK: %codes, %scales = train.quantize_state %m {block = 8 : i64, signed} : (tensor<4x16xf32>) -> (tensor<4x16xui8>, tensor<4x2xf32>)
  %codes, %scales = train.quantize_state %m {block = 8 : i64, signed} : (tensor<4x16xf32>) -> (tensor<4x16xui8>, tensor<4x2xf32>)
  // CHECK: %s = train.dequantize_state %codes, %scales {block = 8 : i64, signed} : (tensor<4x16xui8>, tensor<4x2xf32>) -> tensor<4x16xf32>
  %s = train.dequantize_state %codes, %scales {block = 8 : i64, signed} : (tensor<4x16xui8>, tensor<4x2xf32>) -> tensor<4x16xf32>
  func.return %s : tensor<4x16xf32>
}
