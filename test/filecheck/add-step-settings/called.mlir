// RUN: not distir-opt %s -p add-step-settings 2>&1 | filecheck %s
// RUN: distir-opt %s -p inline-calls,add-step-settings | filecheck %s --check-prefix INLINED

// CHECK: train.sgd is not in @main, where an update must be to take a learning rate that differs from step to step; run inline-calls first
// INLINED: train.sgd %w, %g given %learning_rate, %weight_decay

func.func @update(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %0 = train.sgd %w, %g {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func @main(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @update(%w, %g) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
