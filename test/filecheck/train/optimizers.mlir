// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @main(%p: tensor<4xf32>, %g: tensor<4xf16>, %m: tensor<4xf32>, %v: tensor<4xf32>, %t: tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>) {
  // CHECK: %a, %am, %av = train.adamw %p, %g, %m, %v, %t {learning_rate = 0.0012345678899999999 : f64, weight_decay = 1.000000e-02 : f64, beta1 = 9.000000e-01 : f64, beta2 = 9.990000e-01 : f64, epsilon = 1.000000e-08 : f64} : (tensor<4xf32>, tensor<4xf16>, tensor<4xf32>, tensor<4xf32>, tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  %a, %am, %av = train.adamw %p, %g, %m, %v, %t {learning_rate = 0.00123456789 : f64, weight_decay = 0.01 : f64, beta1 = 0.9 : f64, beta2 = 0.999 : f64, epsilon = 1.0e-8 : f64} : (tensor<4xf32>, tensor<4xf16>, tensor<4xf32>, tensor<4xf32>, tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  // CHECK: %b, %bm, %bv = train.adam %a, %g, %am, %av, %t
  %b, %bm, %bv = train.adam %a, %g, %am, %av, %t {learning_rate = 0.001 : f64, weight_decay = 0.0 : f64, beta1 = 0.9 : f64, beta2 = 0.999 : f64, epsilon = 1.0e-8 : f64} : (tensor<4xf32>, tensor<4xf16>, tensor<4xf32>, tensor<4xf32>, tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  // CHECK: %c = train.sgd %b, %g {learning_rate = 1.000000e-01 : f64, weight_decay = 0.000000e+00 : f64} : (tensor<4xf32>, tensor<4xf16>) -> tensor<4xf32>
  %c = train.sgd %b, %g {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf16>) -> tensor<4xf32>
  // CHECK: %d, %dm = train.sgd %c, %g momentum %bm {learning_rate = 1.000000e-01 : f64, weight_decay = 0.000000e+00 : f64, momentum = 9.000000e-01 : f64, nesterov} : (tensor<4xf32>, tensor<4xf16>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %d, %dm = train.sgd %c, %g momentum %bm {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, momentum = 0.9 : f64, nesterov} : (tensor<4xf32>, tensor<4xf16>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  // CHECK: %s = train.square_sum %g : (tensor<4xf16>) -> tensor<f32>
  %s = train.square_sum %g : (tensor<4xf16>) -> tensor<f32>
  func.return %d, %dm, %bv, %s : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>
}
