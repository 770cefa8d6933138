// RUN: distir-opt %s -p "propagate-sharding,partition" | filecheck %s

// A Gemm whose reduction is split would add its bias once per device. It is decomposed:
// the bias is added after the reduction.

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: %[[PRODUCT:.*]] = onnx.Gemm(%x, %w) : ({{.*}}) -> tensor<8x16xf32, #dist.layout<@mesh, partial sum {t}>>
// CHECK: %[[SUM:.*]] = collective.all_reduce %[[PRODUCT]] over [t]
// CHECK: onnx.Add(%[[SUM]], %b)
func.func @main(
  %x: tensor<8x64xf32> {dist.layout = #dist.layout<@mesh, [{}, {t}]>},
  %w: tensor<64x16xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{t}, {}]>},
  %b: tensor<16xf32> {dist.role = "parameter"}
) -> tensor<8x16xf32> {
  %y = onnx.Gemm(%x, %w, %b) : (tensor<8x64xf32>, tensor<64x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
