// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

// CHECK-LABEL: func.func @attributes
func.func @attributes(%x: tensor<8x4xf32>, %w: tensor<16x4xf32>, %b: tensor<16xf32>) {
  // An attribute of the standard is a property, anything else a discardable attribute.
  // CHECK-NEXT: %y = onnx.Gemm(%x, %w, %b) {transB = 1 : i64, alpha = 5.000000e-01 : f32, scope = "h.0.mlp"} : (tensor<8x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  // GENERIC: "onnx.Gemm"(%x, %w, %b) <{transB = 1 : i64, alpha = 5.000000e-01 : f32}> {scope = "h.0.mlp"}
  %y = onnx.Gemm(%x, %w, %b) {transB = 1 : i64, scope = "h.0.mlp", alpha = 0.5 : f32} : (tensor<8x4xf32>, tensor<16x4xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  // CHECK-NEXT: %z = onnx.Transpose(%y) {perm = [1 : i64, 0 : i64]} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  %z = onnx.Transpose(%y) {perm = [1 : i64, 0 : i64]} : (tensor<8x16xf32>) -> tensor<16x8xf32>
  // CHECK-NEXT: %g = onnx.Gelu(%z) {approximate = "tanh"}
  %g = onnx.Gelu(%z) {approximate = "tanh"} : (tensor<16x8xf32>) -> tensor<16x8xf32>
  func.return
}

// CHECK-LABEL: func.func @omitted
func.func @omitted(%x: tensor<4xf32>, %max: tensor<f32>) {
  // CHECK-NEXT: %0 = onnx.Clip(%x, none, %max) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  // GENERIC: "onnx.Clip"(%x, %max) <{omitted_inputs = array<i64: 1>}> : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %0 = onnx.Clip(%x, none, %max) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  // Trailing inputs are simply left out.
  // CHECK-NEXT: %1 = onnx.Clip(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = onnx.Clip(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// CHECK-LABEL: func.func @variadic
func.func @variadic(%x: tensor<4xf32>) {
  // CHECK-NEXT: %0 = onnx.Concat(%x, %x, %x) {axis = 0 : i64}
  %0 = onnx.Concat(%x, %x, %x) {axis = 0 : i64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<12xf32>
  // CHECK-NEXT: %1, %2, %3 = onnx.Split(%0) {num_outputs = 3 : i64} : (tensor<12xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  %1, %2, %3 = onnx.Split(%0) {num_outputs = 3 : i64} : (tensor<12xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  // Optional trailing results may be left out too.
  // CHECK-NEXT: %4, %5 = onnx.LayerNormalization(%1, %2) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  %4, %5 = onnx.LayerNormalization(%1, %2) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<1xf32>)
  func.return
}

// CHECK-LABEL: func.func @constants
func.func @constants() {
  // CHECK-NEXT: %0 = onnx.Constant() {value = dense<[1, 2]> : tensor<2xi64>} : () -> tensor<2xi64>
  %0 = onnx.Constant() {value = dense<[1, 2]> : tensor<2xi64>} : () -> tensor<2xi64>
  // Elements that `dense` cannot hold are a serialized tensor.
  // CHECK-NEXT: %1 = onnx.Constant() {value = #onnx.tensor<"CAEQEEICgD8=">} : () -> tensor<1xbf16>
  %1 = onnx.Constant() {value = #onnx.tensor<"CAEQEEICgD8=">} : () -> tensor<1xbf16>
  func.return
}

// CHECK-LABEL: func.func @types
// CHECK-SAME: %a: tensor<2x!onnx.element<"string">>, %b: !onnx.seq<tensor<2xf32>>, %c: !onnx.optional<tensor<f32>>
func.func @types(%a: tensor<2x!onnx.element<"string">>, %b: !onnx.seq<tensor<2xf32>>, %c: !onnx.optional<tensor<f32>>, %i: tensor<i64>) {
  // CHECK-NEXT: %0 = onnx.SequenceAt(%b, %i) : (!onnx.seq<tensor<2xf32>>, tensor<i64>) -> tensor<2xf32>
  %0 = onnx.SequenceAt(%b, %i) : (!onnx.seq<tensor<2xf32>>, tensor<i64>) -> tensor<2xf32>
  func.return
}

// The other domains of the standard.
// CHECK-LABEL: func.func @domains
func.func @domains(%x: tensor<4xf32>) {
  // CHECK-NEXT: %0 = onnx.ml.Binarizer(%x) {threshold = 0.000000e+00 : f32}
  %0 = onnx.ml.Binarizer(%x) {threshold = 0.0 : f32} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// Layouts ride on the types.
// CHECK-LABEL: func.func @distributed
func.func @distributed(%x: tensor<8x4xf32, #dist.layout<@m, [{d}, {}]>>, %w: tensor<4x4xf32, #dist.layout<@m>>) {
  // CHECK-NEXT: onnx.MatMul(%x, %w) : (tensor<8x4xf32, #dist.layout<@m, [{d}, {}]>>, tensor<4x4xf32, #dist.layout<@m>>) -> tensor<8x4xf32, #dist.layout<@m, [{d}, {}]>>
  %0 = onnx.MatMul(%x, %w) : (tensor<8x4xf32, #dist.layout<@m, [{d}, {}]>>, tensor<4x4xf32, #dist.layout<@m>>) -> tensor<8x4xf32, #dist.layout<@m, [{d}, {}]>>
  func.return
}
