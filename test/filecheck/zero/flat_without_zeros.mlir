// RUN: distir-opt %s -p "differentiate{loss=mse},zero{stage=1}" | filecheck %s

// 4 divides no dimension of the weight, but its 36 elements: nothing follows them.
// CHECK:      dist.notes = ["zero: w.exp_avg, w.exp_avg_sq: stored flat, as axis 'd' of size 4 divides none of the dimensions"]
// CHECK:      %w_exp_avg: tensor<36xf32> {dist.role = "state", dist.name = "w.exp_avg", dist.of = "w", dist.layout = #dist.layout<@mesh, [{d}]>, dist.flattened = {shape = array<i64: 6, 6>, length = 36 : i64}}

device.mesh @mesh on @box <d = 4> [0 to 4]
func.func @main(%x: tensor<8x6xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<6x6xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x6xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<8x6xf32>, tensor<6x6xf32>) -> tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}
