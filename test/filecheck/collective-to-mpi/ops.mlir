// RUN: distir-opt %s -p "project{spmd},collective-to-mpi" | filecheck %s
// RUN: distir-opt %s -p "project{spmd},collective-to-mpi" | xdsl-opt | filecheck %s
// RUN: distir-opt %s -p "project{spmd},collective-to-mpi" --print-op-generic | xdsl-opt -p lower-mpi | filecheck %s --check-prefix CALL

// A ring shift is a send, a receive and a wait: the size of the outermost axis is the
// number of processes. A slice is cut out by the position of the rank. MPI gathers along
// the first dimension, so that columns are transposed.

// CHECK-LABEL: func.func @main
// CHECK:       "mpi.comm.rank"()
// CHECK:       "mpi.comm.size"()
// CHECK:       "mpi.allocate"
// CHECK:       "mpi.isend"
// CHECK-NEXT:  "mpi.unwrap_memref"
// CHECK-NEXT:  "mpi.recv"
// CHECK-NEXT:  "mpi.wait"
// CHECK:       %b = tensor.extract_slice %x{{\[}}%{{.*}}, 0{{\]}} [2, 4] [1, 1] : tensor<8x4xf32> to tensor<2x4xf32>
// CHECK:       "mpi.gather"
// CHECK-NEXT:  "mpi.bcast"
// CHECK:       linalg.transpose {{.*}}permutation = [1, 0, 2]
// CHECK-NEXT:  %c = tensor.collapse_shape %{{.*}} {{\[\[}}0 : i64], [1 : i64, 2 : i64]] : tensor<8x4x1xf32> into tensor<8x4xf32>

// CALL-DAG: func.call @MPI_Isend(
// CALL-DAG: func.call @MPI_Wait(
// CALL-DAG: func.call @MPI_Gather(
// CALL-DAG: func.call @MPI_Bcast(
#rows = #dist.layout<@mesh, [{t}, {}]>
#columns = #dist.layout<@mesh, [{}, {t}]>
device.mesh @mesh on @box <t = 4> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh>>, %y: tensor<8x4xf32, #rows>, %z: tensor<8x4xf32, #columns>) -> (tensor<8x4xf32, #rows>, tensor<8x4xf32, #rows>, tensor<8x4xf32, #dist.layout<@mesh>>) {
  %a = collective.permute %y over [t] : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #rows>
  %b = collective.slice %x over [t] : tensor<8x4xf32, #dist.layout<@mesh>> -> tensor<8x4xf32, #rows>
  %c = collective.all_gather %z over [t] : tensor<8x4xf32, #columns> -> tensor<8x4xf32, #dist.layout<@mesh>>
  func.return %a, %b, %c : tensor<8x4xf32, #rows>, tensor<8x4xf32, #rows>, tensor<8x4xf32, #dist.layout<@mesh>>
}
