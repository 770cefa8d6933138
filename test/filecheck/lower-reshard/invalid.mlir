// RUN: not distir-opt %s -p "lower-reshard" 2>&1 | filecheck %s

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: error: there is no way from layout <@mesh> to <@mesh, partial sum {t}>: a value cannot become partial by communication
func.func @main(%e: tensor<8x8xf32, #dist.layout<@mesh>>) -> () {
  %0 = dist.reshard %e : tensor<8x8xf32, #dist.layout<@mesh>> -> tensor<8x8xf32, #dist.layout<@mesh, partial sum {t}>>
  func.return
}
