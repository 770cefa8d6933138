// RUN: distir-opt %s -p "project{spmd}" | filecheck %s

// Public functions that the program does not call, but that are distributed too, become
// code for all ranks like the program.

// CHECK-LABEL: func.func @main
// CHECK:       collective.spmd.all_reduce
// CHECK-LABEL: func.func @other
// CHECK:       collective.spmd.all_reduce
// CHECK-LABEL: func.func @alone(%x: tensor<8xf32>)
#sum = #dist.layout<@mesh, partial sum {t}>
device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<8xf32, #sum>) -> tensor<8xf32, #dist.layout<@mesh>> {
  %y = collective.all_reduce %x over [t] : tensor<8xf32, #sum> -> tensor<8xf32, #dist.layout<@mesh>>
  func.return %y : tensor<8xf32, #dist.layout<@mesh>>
}
func.func @other(%x: tensor<8xf32, #sum>) -> tensor<8xf32, #dist.layout<@mesh>> {
  %y = collective.all_reduce %x over [t] : tensor<8xf32, #sum> -> tensor<8xf32, #dist.layout<@mesh>>
  func.return %y : tensor<8xf32, #dist.layout<@mesh>>
}
func.func @alone(%x: tensor<8xf32>) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}
