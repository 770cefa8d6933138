// RUN: distir-opt %s -p infer-types --verify-diagnostics | filecheck %s --check-prefix=ABSTRACT
// RUN: distir-opt %s -p fold-shapes | filecheck %s

// DistIR's Figure 4, from GPT-2. The shape that %v225 gets depends on values: types alone
// cannot tell it, and neither the shape of the Gemm's result.

// ABSTRACT: shape of %v225, the result of onnx.Reshape, is unknown: its shape operand %v224 is not a known constant

// CHECK-LABEL: func.func @main
// CHECK-NOT:     onnx.Shape
// CHECK-NOT:     onnx.Gather
// CHECK-NOT:     onnx.Concat
// CHECK:         %[[SUM:.+]] = onnx.Add
// CHECK:         %[[SHAPE:.+]] = onnx.Constant() {value = dense<[-1, 768]> : tensor<2xi64>} : () -> tensor<2xi64>
// CHECK:         %[[FLAT:.+]] = onnx.Reshape(%[[SUM]], %[[SHAPE]]) : (tensor<256x8x768xf32>, tensor<2xi64>) -> tensor<2048x768xf32>
// CHECK:         onnx.Gemm(%[[FLAT]], {{.*}}) : ({{.*}}) -> tensor<2048x2304xf32>

func.func @main(
    %a: tensor<256x8x768xf32>, %b: tensor<256x8x768xf32>,
    %w: tensor<768x2304xf32>, %c: tensor<2304xf32>) -> tensor<?x2304xf32> {
  %v3114 = onnx.Constant() {value = dense<-1> : tensor<1xi64>} : () -> tensor<1xi64>
  %v211 = onnx.Add(%a, %b) : (tensor<256x8x768xf32>, tensor<256x8x768xf32>) -> tensor<256x8x768xf32>
  %v218 = onnx.Shape(%v211) : (tensor<256x8x768xf32>) -> tensor<3xi64>
  %v219 = onnx.Constant() {value = dense<2> : tensor<i64>} : () -> tensor<i64>
  %v220 = onnx.Gather(%v218, %v219) {axis = 0 : i64} : (tensor<3xi64>, tensor<i64>) -> tensor<i64>
  %axes = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %v223 = onnx.Unsqueeze(%v220, %axes) : (tensor<i64>, tensor<1xi64>) -> tensor<1xi64>
  %v224 = onnx.Concat(%v3114, %v223) {axis = 0 : i64} : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
  %v225 = onnx.Reshape(%v211, %v224) : (tensor<256x8x768xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  %v226 = onnx.Gemm(%v225, %w, %c) : (tensor<?x?xf32>, tensor<768x2304xf32>, tensor<2304xf32>) -> tensor<?x2304xf32>
  func.return %v226 : tensor<?x2304xf32>
}
