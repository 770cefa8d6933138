// RUN: distir-opt %s -p autocast | filecheck %s

// The matrix product is in bf16, its operands are cast once; the norm and the softmax are in f32, and
// the sum of a bf16 and an f32 value is too.
// CHECK: func.func @main(%x: tensor<4x8xf32> {{.*}}, %w: tensor<8x8xf32> {{.*}}, %g: tensor<8xf32>
// CHECK-NEXT: %0 = onnx.Cast(%x) {to = 16 : i64}
// CHECK-NEXT: %1 = onnx.Cast(%w) {to = 16 : i64} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
// CHECK-NEXT: %a = onnx.MatMul(%0, %1) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT: %2 = onnx.Cast(%a) {to = 1 : i64}
// CHECK-NEXT: %r = onnx.Relu(%a) : (tensor<4x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT: %b = onnx.MatMul(%r, %1) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT: %3 = onnx.Cast(%b) {to = 1 : i64}
// CHECK-NEXT: %s = onnx.Add(%2, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: %n = onnx.LayerNormalization(%3, %g) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT: %p = onnx.Softmax(%s) : (tensor<4x8xf32>) -> tensor<4x8xf32>
func.func @main(
    %x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"},
    %g: tensor<8xf32> {dist.role = "parameter", dist.name = "g"}
) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %a = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %r = onnx.Relu(%a) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b = onnx.MatMul(%r, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %s = onnx.Add(%a, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %n = onnx.LayerNormalization(%b, %g) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %p = onnx.Softmax(%s) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %n, %p : tensor<4x8xf32>, tensor<4x8xf32>
}
