// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @gradient(%p: tensor<4xf32>, %g: tensor<3xf32>) {
  // CHECK: train.sgd: gradient has shape [3], expected [4]
  %c = train.sgd %p, %g {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<3xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @rate(%p: tensor<4xf32>, %g: tensor<4xf32>) {
  // CHECK: train.sgd: learning_rate is -0.1, expected a number that is not negative
  %c = train.sgd %p, %g {learning_rate = -0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @momentum(%p: tensor<4xf32>, %g: tensor<4xf32>) {
  // CHECK: train.sgd: a momentum buffer, its new value and the number momentum go together
  %c, %m = train.sgd %p, %g momentum %p {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @nesterov(%p: tensor<4xf32>, %g: tensor<4xf32>) {
  // CHECK: train.sgd: nesterov needs momentum
  %c = train.sgd %p, %g {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, nesterov} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @step(%p: tensor<4xf32>, %g: tensor<4xf32>, %t: tensor<f32>) {
  // CHECK: train.adam: step has elements of type f32, expected i64
  %a, %m, %v = train.adam %p, %g, %p, %p, %t {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, beta1 = 0.9 : f64, beta2 = 0.99 : f64, epsilon = 1.0e-8 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @beta(%p: tensor<4xf32>, %g: tensor<4xf32>, %t: tensor<i64>) {
  // CHECK: train.adamw: beta2 is 1.0, expected less than 1
  %a, %m, %v = train.adamw %p, %g, %p, %p, %t {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, beta1 = 0.9 : f64, beta2 = 1.0 : f64, epsilon = 1.0e-8 : f64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @states(%p: tensor<4xf32>, %g: tensor<4xf16>, %t: tensor<i64>) {
  // CHECK: train.adamw: exp_avg has elements of type f16, expected f32
  %a, %m, %v = train.adamw %p, %g, %g, %p, %t {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, beta1 = 0.9 : f64, beta2 = 0.9 : f64, epsilon = 1.0e-8 : f64} : (tensor<4xf32>, tensor<4xf16>, tensor<4xf16>, tensor<4xf32>, tensor<i64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @squares(%g: tensor<4xf16>) {
  // CHECK: train.square_sum: total has elements of type f16, expected f32
  %s = train.square_sum %g : (tensor<4xf16>) -> tensor<f16>
  func.return
}
