// RUN: distir-opt %s -p train-dropout | filecheck %s
// RUN: distir-opt %s -p "train-dropout{attention=false}" | filecheck %s --check-prefix=APART

// Dropout of the probabilities becomes part of the attention; its causal mask is added, so
// that queries can be split.

// CHECK:      func.func @main
// CHECK:        train.dropped_attention %q, %k, %v mask %mask, %optimizer_step
// CHECK-SAME:     {scale = 1.000000e+00 : f32, ratio = 2.500000e-01 : f64, seed = 0 : i64, stream = 0 : i64}
// CHECK-NOT:    {{Softmax|train.dropout}}

// APART:        onnx.Softmax
// APART-NEXT:   train.dropout %w

func.func @main(%q: tensor<1x2x2x8xf32> {dist.role = "parameter", dist.name = "q"}, %k: tensor<1x2x2x8xf32> {dist.role = "parameter", dist.name = "k"}, %v: tensor<1x2x2x8xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<1x2x2x8xf32> {
  %mask = onnx.Constant() {value = dense<[[0.0, -3.0E+38], [0.0, 0.0]]> : tensor<2x2xf32>} : () -> tensor<2x2xf32>
  %ratio = onnx.Constant() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %on = onnx.Constant() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  %t = onnx.Transpose(%k) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x2x8xf32>) -> tensor<1x2x8x2xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x2x8xf32>, tensor<1x2x8x2xf32>) -> tensor<1x2x2x2xf32>
  %m = onnx.Add(%p, %mask) : (tensor<1x2x2x2xf32>, tensor<2x2xf32>) -> tensor<1x2x2x2xf32>
  %w = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<1x2x2x2xf32>) -> tensor<1x2x2x2xf32>
  %d = onnx.Dropout(%w, %ratio, %on) : (tensor<1x2x2x2xf32>, tensor<f32>, tensor<i1>) -> tensor<1x2x2x2xf32>
  %y = onnx.MatMul(%d, %v) : (tensor<1x2x2x2xf32>, tensor<1x2x2x8xf32>) -> tensor<1x2x2x8xf32>
  func.return %y : tensor<1x2x2x8xf32>
}
