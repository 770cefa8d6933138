// RUN: distir-opt %s -p fold-shapes | filecheck %s

// Shapes go through calls; a value is known in a function if every call agrees on it.

// CHECK-LABEL: func.func @scale
// CHECK-SAME:    (%x: tensor<2x3x4xf32>, %by: tensor<f32>) -> tensor<2x3x4xf32>
// CHECK-NEXT:    onnx.Mul(%x, %by) : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x3x4xf32>
// CHECK-LABEL: func.func @flatten
// CHECK-SAME:    (%x: tensor<2x3x4xf32>, %rows: tensor<1xi64>) -> tensor<6x4xf32>
// CHECK-NEXT:    %shape = onnx.Constant() {value = dense<[6, -1]> : tensor<2xi64>} : () -> tensor<2xi64>
// CHECK-NEXT:    onnx.Reshape(%x, %shape)
// CHECK-LABEL: func.func @main
// CHECK-NOT:     onnx.Shape
// CHECK-COUNT-2: func.call @scale({{.*}}) : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x3x4xf32>
// CHECK:         func.call @flatten({{.*}}) : (tensor<2x3x4xf32>, tensor<1xi64>) -> tensor<6x4xf32>

func.func @scale(%x: tensor<?x?x?xf32>, %by: tensor<f32>) -> tensor<?x?x?xf32> {
  %y = onnx.Mul(%x, %by) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  func.return %y : tensor<?x?x?xf32>
}
func.func @flatten(%x: tensor<?x?x?xf32>, %rows: tensor<1xi64>) -> tensor<?x?xf32> {
  %minus = onnx.Constant() {value = dense<-1> : tensor<1xi64>} : () -> tensor<1xi64>
  %shape = onnx.Concat(%rows, %minus) {axis = 0 : i64} : (tensor<1xi64>, tensor<1xi64>) -> tensor<2xi64>
  %y = onnx.Reshape(%x, %shape) : (tensor<?x?x?xf32>, tensor<2xi64>) -> tensor<?x?xf32>
  func.return %y : tensor<?x?xf32>
}
func.func @main(%x: tensor<2x3x4xf32>) -> tensor<?x?xf32> {
  %two = onnx.Constant() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %three = onnx.Constant() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %r = onnx.Relu(%x) : (tensor<2x3x4xf32>) -> tensor<?x?x?xf32>
  %a = func.call @scale(%r, %two) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %b = func.call @scale(%a, %three) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %first = onnx.Shape(%b) {start = 0 : i64, end = 1 : i64} : (tensor<?x?x?xf32>) -> tensor<1xi64>
  %second = onnx.Shape(%b) {start = 1 : i64, end = 2 : i64} : (tensor<?x?x?xf32>) -> tensor<1xi64>
  %rows = onnx.Mul(%first, %second) : (tensor<1xi64>, tensor<1xi64>) -> tensor<1xi64>
  %c = func.call @flatten(%b, %rows) : (tensor<?x?x?xf32>, tensor<1xi64>) -> tensor<?x?xf32>
  func.return %c : tensor<?x?xf32>
}
