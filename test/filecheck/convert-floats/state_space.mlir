// RUN: distir-opt %s -p convert-floats | filecheck %s

// A norm takes what is kept in 32 bits in the type of its scale, which its result has. A scan
// has one type for x, b and c; the steps, which a model computes in 32 bits, keep theirs.
// CHECK: %[[H:.*]] = onnx.Cast(%{{.*}}) {to = 1 : i64} : (tensor<2x4x8xbf16>) -> tensor<2x4x8xf32>
// CHECK: %[[NARROW:.*]] = onnx.Cast(%{{.*}}) {to = 16 : i64} : (tensor<2x4x8xf32>) -> tensor<2x4x8xbf16>
// CHECK: onnx.RMSNormalization(%[[NARROW]], %scale) {{.*}} : (tensor<2x4x8xbf16>, tensor<8xbf16>) -> tensor<2x4x8xbf16>
// CHECK: train.selective_scan {{.*}} : (tensor<2x4x8xbf16>, tensor<2x4x8xf32>, tensor<4x3xbf16>, tensor<2x3x8xbf16>, tensor<2x3x8xbf16>) -> tensor<2x4x8xbf16>
func.func @main(
    %x: tensor<2x4x8xf32> {dist.role = "input", dist.name = "x"},
    %scale: tensor<8xf32> {dist.role = "parameter", dist.name = "scale"},
    %a: tensor<4x3xf32> {dist.role = "parameter", dist.name = "a"},
    %b: tensor<2x3x8xf32> {dist.role = "input", dist.name = "b"}
) -> tensor<2x4x8xf32> {
  %h = onnx.Cast(%x) {to = 1 : i64} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %n = onnx.RMSNormalization(%h, %scale) {stash_type = 1 : i64} : (tensor<2x4x8xf32>, tensor<8xf32>) -> tensor<2x4x8xf32>
  %y = train.selective_scan %n, %h, %a, %b, %b : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<4x3xf32>, tensor<2x3x8xf32>, tensor<2x3x8xf32>) -> tensor<2x4x8xf32>
  func.return %y : tensor<2x4x8xf32>
}
