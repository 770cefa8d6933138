// RUN: not distir-opt %s -p verify-distribution 2>&1 | filecheck %s

// Sequences of one pool cannot be split: their tables may name any page of it.
// CHECK: train.paged_read %y: operand 1: dimension 0 is split over 'd', but the op needs that dimension whole

device.mesh @mesh on @box <d = 2> [0 to 2]
func.func @main(%pool: tensor<1x6x2x2x8xf32, #dist.layout<@mesh>>, %table: tensor<4x3xi64, #dist.layout<@mesh, [{d}, {}]>>) -> tensor<4x2x6x8xf32, #dist.layout<@mesh, [{d}, {}, {}, {}]>> {
  %y = train.paged_read %pool, %table : (tensor<1x6x2x2x8xf32, #dist.layout<@mesh>>, tensor<4x3xi64, #dist.layout<@mesh, [{d}, {}]>>) -> tensor<4x2x6x8xf32, #dist.layout<@mesh, [{d}, {}, {}, {}]>>
  func.return %y : tensor<4x2x6x8xf32, #dist.layout<@mesh, [{d}, {}, {}, {}]>>
}
