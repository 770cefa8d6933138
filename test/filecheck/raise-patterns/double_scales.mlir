// RUN: distir-opt %s -p raise-patterns --split-input-file | filecheck %s

// The scale of the operator has 32 bits. In f64 the default is left out, which is exact.

// CHECK: %y = onnx.Attention(%q, %k, %v) {scope = "attn"} : (tensor<1x2x4x8xf64>
func.func @main(%q: tensor<1x2x4x8xf64>, %k: tensor<1x2x4x8xf64>, %v: tensor<1x2x4x6xf64>) -> tensor<1x2x4x6xf64> {
  %c = onnx.Constant() {value = dense<0.35355339059327373> : tensor<f64>} : () -> tensor<f64>
  %t = onnx.Transpose(%k) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf64>) -> tensor<1x2x8x4xf64>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf64>, tensor<1x2x8x4xf64>) -> tensor<1x2x4x4xf64>
  %s = onnx.Mul(%p, %c) : (tensor<1x2x4x4xf64>, tensor<f64>) -> tensor<1x2x4x4xf64>
  %w = onnx.Softmax(%s) {axis = -1 : i64} : (tensor<1x2x4x4xf64>) -> tensor<1x2x4x4xf64>
  %y = onnx.MatMul(%w, %v) {scope = "attn"} : (tensor<1x2x4x4xf64>, tensor<1x2x4x6xf64>) -> tensor<1x2x4x6xf64>
  func.return %y : tensor<1x2x4x6xf64>
}

// -----

// A scale that 32 bits would round stays written out.

// CHECK:     onnx.Softmax
// CHECK-NOT: onnx.Attention
func.func @main(%q: tensor<1x2x4x8xf64>, %k: tensor<1x2x4x8xf64>, %v: tensor<1x2x4x6xf64>) -> tensor<1x2x4x6xf64> {
  %c = onnx.Constant() {value = dense<0.3> : tensor<f64>} : () -> tensor<f64>
  %t = onnx.Transpose(%k) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf64>) -> tensor<1x2x8x4xf64>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf64>, tensor<1x2x8x4xf64>) -> tensor<1x2x4x4xf64>
  %s = onnx.Mul(%p, %c) : (tensor<1x2x4x4xf64>, tensor<f64>) -> tensor<1x2x4x4xf64>
  %w = onnx.Softmax(%s) {axis = -1 : i64} : (tensor<1x2x4x4xf64>) -> tensor<1x2x4x4xf64>
  %y = onnx.MatMul(%w, %v) {scope = "attn"} : (tensor<1x2x4x4xf64>, tensor<1x2x4x6xf64>) -> tensor<1x2x4x6xf64>
  func.return %y : tensor<1x2x4x6xf64>
}
