// RUN: distir-opt %s -p "distribute{t=4 cluster=cpu},project{spmd},collective-to-mpi" | filecheck %s
// RUN: distir-opt %s -p "distribute{t=4 cluster=cpu},project{spmd},collective-to-mpi" | xdsl-opt -p lower-mpi | filecheck %s --check-prefix CALL
// RUN: not distir-opt %s -p "distribute{d=2 t=2 cluster=cpu},project{spmd},collective-to-mpi" 2>&1 | filecheck %s --check-prefix GROUPS
// RUN: not distir-opt %s -p "distribute{t=4 cluster=cpu},collective-to-mpi" 2>&1 | filecheck %s --check-prefix FORM

// A program of linalg for all ranks: the sum of the second product is MPI's, in buffers.

// CHECK-LABEL: func.func @main
// CHECK-SAME:  %w: tensor<16x8xf32>
// CHECK-NOT:   collective
// CHECK:       %y = linalg.matmul
// CHECK-NEXT:  %[[FROM:.*]] = bufferization.to_buffer %y read_only : tensor<8x16xf32> to memref<8x16xf32>
// CHECK-NEXT:  %[[TO:.*]] = memref.alloc() : memref<8x16xf32>
// CHECK-NEXT:  %[[SENT:.*]], %[[COUNT:.*]], %[[TYPE:.*]] = "mpi.unwrap_memref"(%[[FROM]])
// CHECK-NEXT:  %[[MADE:.*]], %{{.*}}, %{{.*}} = "mpi.unwrap_memref"(%[[TO]])
// CHECK-NEXT:  "mpi.allreduce"(%[[SENT]], %[[MADE]], %[[COUNT]], %[[TYPE]]) <{operationtype = !mpi.operation<"MPI_SUM">}>
// CHECK-NEXT:  %[[SUM:.*]] = bufferization.to_tensor %[[TO]] restrict : memref<8x16xf32> to tensor<8x16xf32>
// CHECK-NEXT:  func.return %[[SUM]]

// CALL-COUNT-1: func.call @MPI_Allreduce(
// CALL:         func.func private @MPI_Allreduce(!llvm.ptr, !llvm.ptr, i32, i32, i32, i32)

// GROUPS: error: collective-to-mpi: collective.spmd.all_reduce runs in groups of ranks along t, but xDSL's mpi dialect has only the communicator of all ranks; distribute the program over one axis, as distribute{t=4} does, or lower it with collective-to-shard
// FORM:   error: collective-to-mpi: collective.all_reduce belongs to a distributed program; run project{spmd} or project{rank=...} before
func.func @main(
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"},
    %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<8x16xf32> {
  %zero = arith.constant 0.0 : f32
  %a = tensor.empty() : tensor<8x32xf32>
  %z = linalg.fill ins(%zero : f32) outs(%a : tensor<8x32xf32>) -> tensor<8x32xf32>
  %h = linalg.matmul ins(%x, %w : tensor<8x16xf32>, tensor<16x32xf32>)
    outs(%z : tensor<8x32xf32>) -> tensor<8x32xf32>
  %r = arith.maximumf %h, %z : tensor<8x32xf32>
  %b = tensor.empty() : tensor<8x16xf32>
  %c = linalg.fill ins(%zero : f32) outs(%b : tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = linalg.matmul ins(%r, %v : tensor<8x32xf32>, tensor<32x16xf32>)
    outs(%c : tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
