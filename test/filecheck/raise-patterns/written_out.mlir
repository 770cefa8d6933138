// RUN: distir-opt %s -p raise-patterns --split-input-file | filecheck %s
// CHECK-NOT: onnx.Attention

// A mask that may be minus infinity for all keys of a query: written out that gives NaN.

func.func @main(%q: tensor<1x2x4x8xf32>, %mask: tensor<4x4xf32>) -> tensor<1x2x4x8xf32> {
  %t = onnx.Transpose(%q) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x4xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x4x4xf32>
  %m = onnx.Add(%p, %mask) : (tensor<1x2x4x4xf32>, tensor<4x4xf32>) -> tensor<1x2x4x4xf32>
  %w = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y = onnx.MatMul(%w, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  func.return %y : tensor<1x2x4x8xf32>
}

// -----

// A mask that is learned, even if it is finite.

func.func @main(%q: tensor<1x2x4x8xf32>, %table: tensor<4x4xf32> {dist.role = "parameter", dist.name = "bias"}) -> tensor<1x2x4x8xf32> {
  %low = onnx.Constant() {value = dense<-1.0> : tensor<f32>} : () -> tensor<f32>
  %mask = onnx.Max(%table, %low) : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %t = onnx.Transpose(%q) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x4xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x4x4xf32>
  %m = onnx.Add(%p, %mask) : (tensor<1x2x4x4xf32>, tensor<4x4xf32>) -> tensor<1x2x4x4xf32>
  %w = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y = onnx.MatMul(%w, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  func.return %y : tensor<1x2x4x8xf32>
}

// -----

// Weights that are an output, a softmax along queries, and keys that are not transposed.

func.func @main(%q: tensor<1x2x4x4xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) {
  %t = onnx.Transpose(%q) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %w = onnx.Softmax(%p) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y = onnx.MatMul(%w, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %p2 = onnx.MatMul(%q, %t) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %w2 = onnx.Softmax(%p2) {axis = 2 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y2 = onnx.MatMul(%w2, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %p3 = onnx.MatMul(%q, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %w3 = onnx.Softmax(%p3) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y3 = onnx.MatMul(%w3, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  func.return %w, %y, %y2, %y3 : tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>
}
