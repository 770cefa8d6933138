// RUN: not distir-opt %s -p "project{rank=7}" 2>&1 | filecheck %s --check-prefix RANK
// RUN: not distir-opt %s -p "project" 2>&1 | filecheck %s

device.mesh @pair on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<4xf32, #dist.layout<@pair, [{t}]>>) -> tensor<4xf32, #dist.layout<@pair>> {
  %y = dist.reshard %x : tensor<4xf32, #dist.layout<@pair, [{t}]>> -> tensor<4xf32, #dist.layout<@pair>>
  func.return %y : tensor<4xf32, #dist.layout<@pair>>
}

// RANK: the program does not run on device 7; its devices are 0, 1
// CHECK: dist.reshard %y is still in the program; run `partition` and `lower-reshard` before `project`
