// RUN: distir-opt %s -p train-dropout | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=STEP

// In evaluation mode nothing is dropped, and there is nothing to count.

// CHECK-NOT: optimizer.step
// CHECK:     %d = onnx.Dropout(%p, %ratio, %off)
// CHECK:     %e = onnx.Dropout(%d)
// STEP-NOT:  {{optimizer.step|train.dropout}}
func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x4xf32> {
  %ratio = onnx.Constant() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %off = onnx.Constant() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  %p = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %d = onnx.Dropout(%p, %ratio, %off) : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
  %e = onnx.Dropout(%d) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %e : tensor<8x4xf32>
}
