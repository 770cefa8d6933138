// RUN: distir-opt %s -p await-gradients | filecheck %s
// RUN: distir-opt %s -p await-gradients,await-gradients | filecheck %s
// RUN: distir-opt %s -p await-gradients,reuse-operands | filecheck %s --check-prefix REUSE

// What the results need comes before the wait, also where it was computed later; what is
// given to the caller and what it gives stay as they are.
func.func @main(%x: tensor<4x4xf32>, %dy: tensor<4x4xf32> {dist.role = "label", dist.name = "y.gradient", dist.gradient_of = "y"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<4x4xf32> {dist.name = "y"}, tensor<4x4xf32> {dist.role = "gradient", dist.name = "w.gradient", dist.of = "w"}, tensor<4x4xf32> {dist.name = "z"}) {
  %y = onnx.MatMul(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = onnx.Add(%dy, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %z = onnx.Relu(%y) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %g = onnx.Gemm(%x, %s) {transA = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y, %g, %z : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// CHECK:       %y = onnx.MatMul
// CHECK-NEXT:  %z = onnx.Relu(%y)
// CHECK-NEXT:  %dy_1 = torch.await_gradients %y, %z {places = array<i64: 0, 2>, arguments = array<i64: 1>, part = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:  %s = onnx.Add(%dy_1, %y)
// CHECK-NEXT:  %g = onnx.Gemm
// CHECK-NEXT:  func.return %g : tensor<4x4xf32>

// REUSE:       torch.await_gradients
// REUSE-NEXT:  onnx.Add(%dy_1, %y)
