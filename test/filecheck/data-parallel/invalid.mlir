// RUN: not distir-opt %s -p "data-parallel" 2>&1 | filecheck %s

device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK: error: data-parallel: the batch of 3 (dimension 0 of input 'x') cannot be split evenly over axis 'd' of size 2
func.func @main(%x: tensor<3x4xf32> {dist.role = "input"}) -> tensor<3x4xf32> {
  func.return %x : tensor<3x4xf32>
}
