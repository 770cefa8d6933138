// RUN: not distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" 2>&1 | filecheck %s

// CHECK: error: scf.for %r (at {{.*}}foreign_bodies.mlir:9) has a body of its own (it computes tensors); a program of DistIR is straight-line code of tensors, so unroll loops

func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %r = scf.for %i = %c0 to %c4 step %c1 iter_args(%a = %x) -> (tensor<8x16xf32>) {
    %h = arith.addf %a, %a : tensor<8x16xf32>
    scf.yield %h : tensor<8x16xf32>
  }
  func.return %r : tensor<8x16xf32>
}
