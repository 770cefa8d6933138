// RUN: distir-opt %s -p "expert-parallel" | filecheck %s
// RUN: distir-opt %s -p "expert-parallel,propagate-sharding,partition,lower-reshard,verify-distribution" | filecheck %s --check-prefix=SPLIT
// RUN: not distir-opt %s -p "expert-parallel{axis=d}" 2>&1 | filecheck %s --check-prefix=AXIS

// Two of four experts on each device, in a shard: a token has a place for each of its two
// choices in either shard, and leaves two of these four places empty.

device.mesh @mesh on @box <e = 2> [0 to 2]

// CHECK:      %x: tensor<4x1x8xf32> {dist.role = "input", dist.name = "x", dist.layout = #dist.layout<@mesh, [{e}, {}, {}]>
// CHECK-SAME: %w: tensor<4x8x6xf32> {{.*}} dist.layout = #dist.layout<@mesh, [{e}, {}, {}]>, dist.fixed = ["e"], dist.fixed_by = {e = "expert parallelism"}
// CHECK:      %slots, %rows = train.expert_places %ids {experts = 4 : i64, capacity = 1 : i64} : (tensor<4x1x2xi64>) -> (tensor<4x1x2xi64>, tensor<2x4x2xi64>)
// CHECK-NEXT: %[[X:.*]] = train.dispatch %x, %slots, %rows {{.*}} -> tensor<2x4x2x8xf32>
// CHECK-NEXT: %[[P:.*]] = dist.constrain %[[X]] {{.*}}[{e}, {}, {}, {}]> over [e]
// CHECK:      train.grouped_product %[[P]], {{.*}} -> tensor<2x4x2x6xf32>
// CHECK:      train.combine {{.*}} -> tensor<4x1x6xf32>

// Sending a token to all devices is shorter than sending its places to each shard: tokens are
// gathered, and results, of which each device has a term, are reduced.
// SPLIT:      collective.all_gather {{.*}} over [e]
// SPLIT:      train.grouped_product {{.*}}tensor<4x8x6xf32, #dist.layout<@mesh, [{e}, {}, {}]>>) -> tensor<2x4x2x6xf32, #dist.layout<@mesh, [{e}, {}, {}, {}]>>
// SPLIT:      collective.all_reduce {{.*}} over [e] : tensor<4x1x6xf32, #dist.layout<@mesh, partial sum {e}>>

// AXIS: error: no mesh has an axis 'd' (meshes of this module: @mesh {'e': 2})

func.func @main(%x: tensor<4x1x8xf32> {dist.role = "input", dist.name = "x"}, %ids: tensor<4x1x2xi64> {dist.role = "input", dist.name = "ids"}, %weights: tensor<4x1x2xf32> {dist.role = "input", dist.name = "weights"}, %w: tensor<4x8x6xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<4x1x6xf32> {
  %slots, %rows = train.expert_places %ids {experts = 4 : i64, capacity = 1 : i64} : (tensor<4x1x2xi64>) -> (tensor<4x1x2xi64>, tensor<1x4x2xi64>)
  %sent = train.dispatch %x, %slots, %rows : (tensor<4x1x8xf32>, tensor<4x1x2xi64>, tensor<1x4x2xi64>) -> tensor<1x4x2x8xf32>
  %h = train.grouped_product %sent, %rows, %w {taken = 2 : i64} : (tensor<1x4x2x8xf32>, tensor<1x4x2xi64>, tensor<4x8x6xf32>) -> tensor<1x4x2x6xf32>
  %y = train.combine %h, %slots, %rows, %weights : (tensor<1x4x2x6xf32>, tensor<4x1x2xi64>, tensor<1x4x2xi64>, tensor<4x1x2xf32>) -> tensor<4x1x6xf32>
  func.return %y : tensor<4x1x6xf32>
}
