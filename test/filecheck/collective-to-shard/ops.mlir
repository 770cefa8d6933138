// RUN: distir-opt %s -p "project{spmd},collective-to-shard" | filecheck %s
// RUN: distir-opt %s -p "project{spmd},collective-to-shard" | xdsl-opt | filecheck %s
// RUN: not distir-opt %s -p "collective-to-shard" 2>&1 | filecheck %s --check-prefix FORM
// RUN: sed "s/all_reduce %x/reduce_scatter %x/; s/tensor<8x4xf32, #dist.layout<@mesh>>/tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>/g" %s | not distir-opt -p "project{spmd},collective-to-shard" 2>&1 | filecheck %s --check-prefix OTHER

// CHECK:      shard.grid @mesh_grid(shape = 2x2)
// CHECK:      func.func @main(
// CHECK-NEXT: %a = shard.all_reduce %x on @mesh_grid grid_axes = [1] reduction = max : tensor<8x4xf32> -> tensor<8x4xf32>
// CHECK-NEXT: %b = shard.shift %y on @mesh_grid grid_axes = [0] shift_axis = 0 offset = 1 rotate : tensor<4x4xf32> -> tensor<4x4xf32>
// CHECK-NEXT: func.return

// FORM:  error: collective-to-shard: collective.all_reduce %a is not of one program for all ranks; run project{spmd} before
// OTHER: error: collective-to-shard: collective.spmd.reduce_scatter %a has no op in xDSL's shard dialect, which has those for all_reduce and permute
device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh, partial max {t}>>, %y: tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>) -> (tensor<8x4xf32, #dist.layout<@mesh>>, tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>) {
  %a = collective.all_reduce %x over [t] : tensor<8x4xf32, #dist.layout<@mesh, partial max {t}>> -> tensor<8x4xf32, #dist.layout<@mesh>>
  %b = collective.permute %y over [d] : tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>
  func.return %a, %b : tensor<8x4xf32, #dist.layout<@mesh>>, tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>
}
