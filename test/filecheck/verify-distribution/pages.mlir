// RUN: distir-opt %s -p verify-distribution --split-input-file --verify-diagnostics | filecheck %s

// Pools are split with their sequences, heads of pools with heads of queries.

device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
func.func @main(%q: tensor<4x4x1x8xf32, #dist.layout<@mesh, [{d}, {t}, {}, {}]>>, %pool: tensor<2x6x2x2x8xf32, #dist.layout<@mesh, [{d}, {}, {t}, {}, {}]>>, %table: tensor<4x3xi64, #dist.layout<@mesh, [{d}, {}]>>, %mask: tensor<4x1x1x6xf32, #dist.layout<@mesh, [{d}, {}, {}, {}]>>) -> tensor<4x4x1x8xf32, #dist.layout<@mesh, [{d}, {t}, {}, {}]>> {
  // CHECK: train.paged_attention
  %y = train.paged_attention %q, %pool, %pool, %table, %mask : (tensor<4x4x1x8xf32, #dist.layout<@mesh, [{d}, {t}, {}, {}]>>, tensor<2x6x2x2x8xf32, #dist.layout<@mesh, [{d}, {}, {t}, {}, {}]>>, tensor<2x6x2x2x8xf32, #dist.layout<@mesh, [{d}, {}, {t}, {}, {}]>>, tensor<4x3xi64, #dist.layout<@mesh, [{d}, {}]>>, tensor<4x1x1x6xf32, #dist.layout<@mesh, [{d}, {}, {}, {}]>>) -> tensor<4x4x1x8xf32, #dist.layout<@mesh, [{d}, {t}, {}, {}]>>
  func.return %y : tensor<4x4x1x8xf32, #dist.layout<@mesh, [{d}, {t}, {}, {}]>>
}
