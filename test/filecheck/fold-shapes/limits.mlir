// RUN: distir-opt %s -p "fold-shapes{max_elements=4}" | filecheck %s

// Large values stay computed, random ones too, and what has effects is kept.

// CHECK:      %shape = onnx.Constant
// CHECK:      %ones = onnx.ConstantOfShape(%shape) : (tensor<2xi64>) -> tensor<2x3xf32>
// CHECK:      %random = onnx.RandomNormal() {shape = [2 : i64]} : () -> tensor<2xf32>
// CHECK-NOT:  onnx.Neg
// CHECK:      %small = onnx.Constant() {value = dense<6> : tensor<i64>, scope = "layer"} : () -> tensor<i64>
// CHECK-NEXT: func.return

func.func @main(%x: tensor<2x3xf32>) -> (tensor<?x?xf32>, tensor<2xf32>, tensor<i64>) {
  %shape = onnx.Shape(%x) : (tensor<2x3xf32>) -> tensor<2xi64>
  %ones = onnx.ConstantOfShape(%shape) : (tensor<2xi64>) -> tensor<?x?xf32>
  %random = onnx.RandomNormal() {shape = [2]} : () -> tensor<2xf32>
  %dead = onnx.Neg(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %small = onnx.Size(%x) {scope = "layer"} : (tensor<2x3xf32>) -> tensor<i64>
  func.return %ones, %random, %small : tensor<?x?xf32>, tensor<2xf32>, tensor<i64>
}
