// RUN: not distir-opt %s -p verify-distribution 2>&1 | filecheck %s

// A module that communicates over e takes its experts split over e, as it declares.
// CHECK: operand 1 has layout <@mesh>, but the op communicates over 'e' by itself; expected layout <@mesh, [{e}, {}]>

device.mesh @mesh on @pair <e = 2> [0 to 2]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh, [{e}, {}]>>, %w: tensor<4x4xf32, #dist.layout<@mesh>>) -> tensor<8x4xf32, #dist.layout<@mesh, [{e}, {}]>> {
  %y = train.opaque %x, %w {module = "m", tensors = ["w"], rule = "[b@e, 4], [4@e, 4] -> [b@e, 4]"} : tensor<8x4xf32, #dist.layout<@mesh, [{e}, {}]>>, tensor<4x4xf32, #dist.layout<@mesh>> -> tensor<8x4xf32, #dist.layout<@mesh, [{e}, {}]>>
  func.return %y : tensor<8x4xf32, #dist.layout<@mesh, [{e}, {}]>>
}
