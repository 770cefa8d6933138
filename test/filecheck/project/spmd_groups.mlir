// RUN: distir-opt %s -p "project{spmd}" | filecheck %s
// RUN: sed "s/\[0 to 4\]/[1, 0, 2, 3]/" %s | not distir-opt -p "project{spmd}" 2>&1 | filecheck %s --check-prefix ORDER

// The size of the outermost axis, d, is not in the code: its groups follow from the number of
// ranks. Groups over both axes have the ranks in order of d, then t.

// CHECK:      [[R:%.*]] = collective.spmd.rank : tensor<i64>
// CHECK:      [[N:%.*]] = collective.spmd.ranks : tensor<i64>
// CHECK-NEXT: [[D:%.*]] = onnx.Range({{.*}}, [[N]], {{.*}}) : (tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<?xi64>
// CHECK-NEXT: [[GD:%.*]] = onnx.Add({{.*}}, [[D]])
// CHECK:      [[COLUMN:%.*]] = onnx.Unsqueeze([[D]],
// CHECK-NEXT: [[TABLE:%.*]] = onnx.Add([[COLUMN]], {{.*}}) : (tensor<?x1xi64>, tensor<2xi64>) -> tensor<?x2xi64>
// CHECK:      [[BOTH:%.*]] = onnx.Reshape([[TABLE]],
// CHECK:      collective.spmd.all_gather %x in [[GD]] over [d] {mesh = @mesh, dim = 0 : i64} : tensor<4xf32>, tensor<?xi64> -> tensor<8xf32>
// CHECK:      collective.spmd.slice %a in [[GB:%.*]] over [d, t]

// ORDER: error: project{spmd}: mesh @mesh lists its devices in another order than 0, 1, 2, ..., so that coordinates do not follow from the number of a rank; use project{rank=...} for each rank
device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
func.func @main(%x: tensor<8xf32, #dist.layout<@mesh, [{d}]>>) -> tensor<8xf32, #dist.layout<@mesh, [{d, t}]>> {
  %a = collective.all_gather %x over [d] : tensor<8xf32, #dist.layout<@mesh, [{d}]>> -> tensor<8xf32, #dist.layout<@mesh>>
  %b = collective.slice %a over [d, t] : tensor<8xf32, #dist.layout<@mesh>> -> tensor<8xf32, #dist.layout<@mesh, [{d, t}]>>
  func.return %b : tensor<8xf32, #dist.layout<@mesh, [{d, t}]>>
}
