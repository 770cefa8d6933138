// RUN: distir-opt %s -p "verify-distribution" --split-input-file --allow-unregistered-dialect | filecheck %s

// An op of another dialect, without a rule, works on whole values only.

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: "other.op"
func.func @main(%x: tensor<4x8xf32, #dist.layout<@mesh>>) -> tensor<4x8xf32, #dist.layout<@mesh>> {
  %y = "other.op"(%x) : (tensor<4x8xf32, #dist.layout<@mesh>>) -> tensor<4x8xf32, #dist.layout<@mesh>>
  func.return %y : tensor<4x8xf32, #dist.layout<@mesh>>
}
