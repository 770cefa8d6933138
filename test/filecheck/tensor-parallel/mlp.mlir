// RUN: distir-opt %s -p "tensor-parallel" | filecheck %s

// Two matrices with an elementwise function between them: the first is split by
// columns, the second by rows. Only annotations are written.

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK:      %w1: tensor<16x64xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{}, {t}]>}
// CHECK-SAME: %b1: tensor<64xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{t}]>}
// CHECK-SAME: %w2: tensor<64x16xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{t}, {}]>}
// CHECK-SAME: %b2: tensor<16xf32> {dist.role = "parameter"}
func.func @main(
  %x: tensor<8x16xf32> {dist.role = "input"},
  %w1: tensor<16x64xf32> {dist.role = "parameter"},
  %b1: tensor<64xf32> {dist.role = "parameter"},
  %w2: tensor<64x16xf32> {dist.role = "parameter"},
  %b2: tensor<16xf32> {dist.role = "parameter"}
) -> tensor<8x16xf32> {
  %h = onnx.Gemm(%x, %w1, %b1) : (tensor<8x16xf32>, tensor<16x64xf32>, tensor<64xf32>) -> tensor<8x64xf32>
  %a = onnx.Relu(%h) : (tensor<8x64xf32>) -> tensor<8x64xf32>
  // CHECK: onnx.Gemm(%a, %w2, %b2) : (
  %y = onnx.Gemm(%a, %w2, %b2) : (tensor<8x64xf32>, tensor<64x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %z = onnx.Add(%y, %x) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %z : tensor<8x16xf32>
}
