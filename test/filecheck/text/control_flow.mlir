// RUN: not distir-opt %s -p "distribute{d=2 cluster=cpu}" 2>&1 | filecheck %s

// Errors about control flow name its line in the text.
// CHECK: error: function @main has 3 blocks, as of cf.cond_br (at {{.*}}control_flow.mlir:6); a program of DistIR is straight-line code, so define it with one
func.func @main(%x: tensor<8x16xf32>, %b: i1) -> tensor<8x16xf32> {
  cf.cond_br %b, ^bb1, ^bb2
^bb1:
  func.return %x : tensor<8x16xf32>
^bb2:
  %y = arith.addf %x, %x : tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
