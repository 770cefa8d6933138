// RUN: not distir-opt %s -p "sequence-parallel" 2>&1 | filecheck %s

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: error: sequence-parallel: the program has no normalization to split
func.func @main(%x: tensor<2x8x16xf32> {dist.role = "input"}) -> tensor<2x8x16xf32> {
  func.return %x : tensor<2x8x16xf32>
}
