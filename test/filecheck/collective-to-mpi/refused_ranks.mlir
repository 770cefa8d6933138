// RUN: not distir-opt %s -p "project{rank=1},collective-to-mpi" 2>&1 | filecheck %s
// RUN: sed "s/0 to 4/4 to 8/" %s | not distir-opt -p "project{rank=4},collective-to-mpi" 2>&1 | filecheck %s --check-prefix DEVICES

// CHECK:   error: collective-to-mpi: collective.rank.permute %y depends on the rank's own position, which the program of one rank does not say; use project{spmd} instead of project{rank=...}
// DEVICES: error: collective-to-mpi: the meshes of the program have the devices 4, 5, 6, 7; processes of MPI are numbered 0, 1, 2, ..., so give the meshes these devices
#rows = #dist.layout<@mesh, [{t}, {}]>
device.mesh @mesh on @box <t = 4> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #rows>) -> tensor<8x4xf32, #rows> {
  %y = collective.permute %x over [t] : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #rows>
  func.return %y : tensor<8x4xf32, #rows>
}
