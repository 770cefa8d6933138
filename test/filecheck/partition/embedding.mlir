// RUN: distir-opt %s -p "propagate-sharding,partition{lower=false}" | filecheck %s
// RUN: distir-opt %s -p "propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=LOWER

// A table split by rows: each device looks up the indices it holds and the results are
// terms of a sum. partition says where that sum is needed, as an abstract change of
// layout; lower-reshard makes it an all-reduce.

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: %e = onnx.Gather(%table, %i) : ({{.*}}) -> tensor<3x8xf32, #dist.layout<@mesh, partial sum {t}>>
// CHECK: %[[SUM:.*]] = dist.reshard %e : tensor<3x8xf32, #dist.layout<@mesh, partial sum {t}>> -> tensor<3x8xf32, #dist.layout<@mesh>>
// CHECK: onnx.Tanh(%[[SUM]])
// LOWER: collective.all_reduce %e over [t]
func.func @main(%table: tensor<16x8xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{t}, {}]>}, %i: tensor<3xi64>) -> tensor<3x8xf32> {
  %e = onnx.Gather(%table, %i) : (tensor<16x8xf32>, tensor<3xi64>) -> tensor<3x8xf32>
  %y = onnx.Tanh(%e) : (tensor<3x8xf32>) -> tensor<3x8xf32>
  func.return %y : tensor<3x8xf32>
}
