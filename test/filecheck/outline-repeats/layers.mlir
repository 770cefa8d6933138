// RUN: distir-opt %s -p outline-repeats | filecheck %s

// Two layers become two calls of one function. What differs between them, the input and
// the weight, are parameters, as is %bias, which both take from outside; the constant
// %two is copied into the function. Where names differ only in a number, the function has
// `*`, and each call says which number is meant.

func.func @main(
    %x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
    %w0: tensor<8x8xf32> {dist.role = "parameter", dist.name = "h.0.fc.weight"},
    %w1: tensor<8x8xf32> {dist.role = "parameter", dist.name = "h.1.fc.weight"},
    %bias: tensor<8xf32> {dist.role = "parameter", dist.name = "bias"}) -> tensor<4x8xf32> {
  %two = onnx.Constant() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %a0 = onnx.MatMul(%x, %w0) {scope = "h.0.fc"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %b0 = onnx.Add(%a0, %bias) {scope = "h.0.fc"} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %c0 = onnx.Relu(%b0) {scope = "h.0.act"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d0 = onnx.Mul(%c0, %two) {scope = "h.0"} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %a1 = onnx.MatMul(%d0, %w1) {scope = "h.1.fc"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %b1 = onnx.Add(%a1, %bias) {scope = "h.1.fc"} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %c1 = onnx.Relu(%b1) {scope = "h.1.act"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d1 = onnx.Mul(%c1, %two) {scope = "h.1"} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  func.return %d1 : tensor<4x8xf32>
}

// CHECK:       func.func @main(
// CHECK-NEXT:    %d0 = func.call @h(%x, %w0, %bias) {scope = "h.0"} :
// CHECK-NEXT:    %d1 = func.call @h(%d0, %w1, %bias) {scope = "h.1"} :
// CHECK-NEXT:    func.return %d1
// CHECK:       func.func private @h(
// CHECK-SAME:    %0: tensor<4x8xf32>,
// CHECK-SAME:    %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "h.*.fc.weight"},
// CHECK-SAME:    %bias: tensor<8xf32> {dist.role = "parameter", dist.name = "bias"}) -> tensor<4x8xf32>
// CHECK-NEXT:    %a = onnx.MatMul(%0, %w) {scope = "h.*.fc"}
// CHECK-NEXT:    %b = onnx.Add(%a, %bias) {scope = "h.*.fc"}
// CHECK-NEXT:    %c = onnx.Relu(%b) {scope = "h.*.act"}
// CHECK-NEXT:    %two = onnx.Constant() {value = dense<2.000000e+00> : tensor<f32>, scope = "h.*"}
// CHECK-NEXT:    %d = onnx.Mul(%c, %two) {scope = "h.*"}
// CHECK-NEXT:    func.return %d
