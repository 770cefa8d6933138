// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{k=2 cluster=cpu},project{rank=0},await-gradients" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{k=2 cluster=cpu}" -t torch | filecheck %s --check-prefix TORCH

// The caller computes the loss of each micro-batch.
func.func @main(%x: tensor<4x4xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<4x4xf32> {dist.name = "y"}) {
  %y = onnx.MatMul(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}

// CHECK:       func.func @main
// CHECK-SAME:  dist.micro_batches = 2 : i64
// CHECK:       %y = func.call @forward(%x_1, %w)
// CHECK:       %y_gradient_1 = torch.await_gradients %y {places = array<i64: 0>, arguments = array<i64: 1>, part = 0 : i64}
// CHECK:       func.call @backward(%x_1, %y_gradient_1)
// CHECK:       %y_1 = func.call @forward(%x_2, %w)
// CHECK:       %y_gradient_2 = torch.await_gradients %y_1 {places = array<i64: 0>, arguments = array<i64: 1>, part = 1 : i64}
// CHECK:       func.call @backward_accumulate(%x_2, %y_gradient_2, 

// TORCH:       y_gradient, = yield [given.pop(0)]
// TORCH:       y_gradient_2, = yield
// TORCH:       given=(0,), awaited=(1,), parts=2
