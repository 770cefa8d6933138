// RUN: distir-opt %s -p raise-patterns --split-input-file | filecheck %s

// The scale may stand on the queries and keys as well; the transpose of the keys goes.

func.func @main(%q: tensor<1x2x4x8xf32>, %k: tensor<1x2x4x8xf32>, %v: tensor<1x2x4x6xf32>) -> tensor<1x2x4x6xf32> {
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %qs = onnx.Mul(%q, %half) : (tensor<1x2x4x8xf32>, tensor<f32>) -> tensor<1x2x4x8xf32>
  %t = onnx.Transpose(%k) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x4xf32>
  %ts = onnx.Mul(%t, %half) : (tensor<1x2x8x4xf32>, tensor<f32>) -> tensor<1x2x8x4xf32>
  %p = onnx.MatMul(%qs, %ts) : (tensor<1x2x4x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x4x4xf32>
  %w = onnx.Softmax(%p) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y = onnx.MatMul(%w, %v) {scope = "attn"} : (tensor<1x2x4x4xf32>, tensor<1x2x4x6xf32>) -> tensor<1x2x4x6xf32>
  func.return %y : tensor<1x2x4x6xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %y = onnx.Attention(%q, %k, %v) {scale = 2.500000e-01 : f32, scope = "attn"}
// CHECK-NEXT:   func.return %y

// -----

// Keys and values that are repeated for groups of two query heads are given as they are. A
// mask that constants make, which hides what is behind each query, is `is_causal`, also
// where it comes through a call; the function does not take it any more.

func.func private @attend(%q: tensor<1x4x2x8xf32>, %k: tensor<1x2x2x8xf32>, %mask: tensor<2x2xf32>) -> tensor<1x4x2x8xf32> {
  %axis = onnx.Constant() {value = dense<2> : tensor<1xi64>} : () -> tensor<1xi64>
  %wide = onnx.Constant() {value = dense<[1, 2, 2, 2, 8]> : tensor<5xi64>} : () -> tensor<5xi64>
  %flat = onnx.Constant() {value = dense<[1, 4, 2, 8]> : tensor<4xi64>} : () -> tensor<4xi64>
  %u = onnx.Unsqueeze(%k, %axis) : (tensor<1x2x2x8xf32>, tensor<1xi64>) -> tensor<1x2x1x2x8xf32>
  %e = onnx.Expand(%u, %wide) : (tensor<1x2x1x2x8xf32>, tensor<5xi64>) -> tensor<1x2x2x2x8xf32>
  %r = onnx.Reshape(%e, %flat) : (tensor<1x2x2x2x8xf32>, tensor<4xi64>) -> tensor<1x4x2x8xf32>
  %t = onnx.Transpose(%r) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x4x2x8xf32>) -> tensor<1x4x8x2xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x4x2x8xf32>, tensor<1x4x8x2xf32>) -> tensor<1x4x2x2xf32>
  %m = onnx.Add(%p, %mask) : (tensor<1x4x2x2xf32>, tensor<2x2xf32>) -> tensor<1x4x2x2xf32>
  %w = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<1x4x2x2xf32>) -> tensor<1x4x2x2xf32>
  %y = onnx.MatMul(%w, %r) : (tensor<1x4x2x2xf32>, tensor<1x4x2x8xf32>) -> tensor<1x4x2x8xf32>
  func.return %y : tensor<1x4x2x8xf32>
}
func.func @main(%q: tensor<1x4x2x8xf32>, %k: tensor<1x2x2x8xf32>) -> tensor<1x4x2x8xf32> {
  %seen = onnx.Constant() {value = dense<[[1, 0], [1, 1]]> : tensor<2x2xi1>} : () -> tensor<2x2xi1>
  %zero = onnx.Constant() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %low = onnx.Constant() {value = dense<-3.40282347E+38> : tensor<f32>} : () -> tensor<f32>
  %mask = onnx.Where(%seen, %zero, %low) : (tensor<2x2xi1>, tensor<f32>, tensor<f32>) -> tensor<2x2xf32>
  %y = func.call @attend(%q, %k, %mask) : (tensor<1x4x2x8xf32>, tensor<1x2x2x8xf32>, tensor<2x2xf32>) -> tensor<1x4x2x8xf32>
  func.return %y : tensor<1x4x2x8xf32>
}

// CHECK:      func.func private @attend(%q: tensor<1x4x2x8xf32>, %k: tensor<1x2x2x8xf32>) -> tensor<1x4x2x8xf32> {
// CHECK-NEXT:   %y = onnx.Attention(%q, %k, %k) {scale = 1.000000e+00 : f32, is_causal = 1 : i64}
// CHECK-NEXT:   func.return %y
// CHECK:      func.func @main
// CHECK-NEXT:   %y = func.call @attend(%q, %k)
// CHECK-NEXT:   func.return %y

// -----

// A mask of which only its being finite is known is an operand; so is one of another shape.

func.func @main(%q: tensor<2x2x4x8xf32>, %keep: tensor<2x1x1x4xi1>) -> tensor<2x2x4x8xf32> {
  %zero = onnx.Constant() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %low = onnx.Constant() {value = dense<-3.40282347E+38> : tensor<f32>} : () -> tensor<f32>
  %mask = onnx.Where(%keep, %zero, %low) : (tensor<2x1x1x4xi1>, tensor<f32>, tensor<f32>) -> tensor<2x1x1x4xf32>
  %t = onnx.Transpose(%q) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<2x2x4x8xf32>) -> tensor<2x2x8x4xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<2x2x4x8xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x4x4xf32>
  %m = onnx.Add(%mask, %p) : (tensor<2x1x1x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
  %w = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
  %y = onnx.MatMul(%w, %q) : (tensor<2x2x4x4xf32>, tensor<2x2x4x8xf32>) -> tensor<2x2x4x8xf32>
  func.return %y : tensor<2x2x4x8xf32>
}

// CHECK:        %mask = onnx.Where
// CHECK-NEXT:   %y = onnx.Attention(%q, %q, %q, %mask) {scale = 1.000000e+00 : f32}
