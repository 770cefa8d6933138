// RUN: distir-opt %s -p "project{spmd},collective-to-mpi" --verify-diagnostics --split-input-file | filecheck %s

device.mesh @mesh on @box <t = 4> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh, partial sum {t}>>) -> tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>> {
  // CHECK: collective-to-mpi: collective.spmd.reduce_scatter %y has no op in xDSL's mpi dialect, which has those for all_reduce, all_gather (a gather and a broadcast), reduce, broadcast, gather and permute; run decompose-collectives before project, which writes reduce_scatter and all_to_all with these
  %y = collective.reduce_scatter %x over [t] : tensor<8x4xf32, #dist.layout<@mesh, partial sum {t}>> -> tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>
  func.return %y : tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>
}

// -----

device.mesh @mesh on @box <t = 4> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh, [{}, {t}]>>) -> tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>> {
  // CHECK: collective-to-mpi: collective.spmd.all_to_all %y has no op in xDSL's mpi dialect
  %y = collective.all_to_all %x over [t] : tensor<8x4xf32, #dist.layout<@mesh, [{}, {t}]>> -> tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>
  func.return %y : tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>
}

// -----

device.mesh @mesh on @box <t = 4> [0 to 4]
func.func @main(%x: tensor<8x4xbf16, #dist.layout<@mesh, partial sum {t}>>) -> tensor<8x4xbf16, #dist.layout<@mesh>> {
  // CHECK: collective-to-mpi: collective.spmd.all_reduce %y sends bf16, for which xDSL knows no datatype of MPI; convert the tensor to one of f32, f64, i8, i16, i32, i64
  %y = collective.all_reduce %x over [t] : tensor<8x4xbf16, #dist.layout<@mesh, partial sum {t}>> -> tensor<8x4xbf16, #dist.layout<@mesh>>
  func.return %y : tensor<8x4xbf16, #dist.layout<@mesh>>
}

// -----

device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh, [{t:2}, {}]>>) -> tensor<8x4xf32, #dist.layout<@mesh>> {
  // CHECK: collective-to-mpi: collective.spmd.all_gather %y deals out its tensor in runs, which mpi cannot
  %y = collective.all_gather %x over [t] : tensor<8x4xf32, #dist.layout<@mesh, [{t:2}, {}]>> -> tensor<8x4xf32, #dist.layout<@mesh>>
  func.return %y : tensor<8x4xf32, #dist.layout<@mesh>>
}

// -----

device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #dist.layout<@mesh, partial sum {d}>>) -> tensor<8x4xf32, #dist.layout<@mesh>> {
  // CHECK: collective-to-mpi: collective.spmd.all_reduce %y runs in groups of ranks along d, but
  %y = collective.all_reduce %x over [d] : tensor<8x4xf32, #dist.layout<@mesh, partial sum {d}>> -> tensor<8x4xf32, #dist.layout<@mesh>>
  func.return %y : tensor<8x4xf32, #dist.layout<@mesh>>
}
