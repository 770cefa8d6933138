// RUN: distir-opt %s -p "lower-reshard" | filecheck %s

// Of rows of experts, those that are empty are not sent where an all-to-all does it; else rows
// travel like anything else.

device.mesh @mesh on @box <e = 2, t = 2> [0 to 4]

#groups = #dist.layout<@mesh, [{}, {e}, {}]>
#shards = #dist.layout<@mesh, [{e}, {}, {}]>
#of_groups = #dist.layout<@mesh, [{}, {e}, {}, {t}]>
#of_shards = #dist.layout<@mesh, [{e}, {}, {}, {t}]>
#whole = #dist.layout<@mesh>

func.func @main(%x: tensor<2x4x2x6xf32, #of_groups>, %r: tensor<2x4x2xi64, #groups>, %s: tensor<2x4x2xi64, #shards>, %t: tensor<2x4x2xi64, #whole>) -> () {
  // CHECK: collective.ragged_all_to_all %x of %r to %s over [e] {taken = 2 : i64} :
  %0 = dist.reshard %x of %r, %s : tensor<2x4x2xi64, #groups>, tensor<2x4x2xi64, #shards> {taken = 2 : i64} : tensor<2x4x2x6xf32, #of_groups> -> tensor<2x4x2x6xf32, #of_shards>
  // CHECK-NEXT: collective.all_gather %x over [e] :
  %1 = dist.reshard %x of %r, %t : tensor<2x4x2xi64, #groups>, tensor<2x4x2xi64, #whole> {taken = 2 : i64} : tensor<2x4x2x6xf32, #of_groups> -> tensor<2x4x2x6xf32, #dist.layout<@mesh, [{}, {}, {}, {t}]>>
  func.return
}
