// RUN: not distir-opt %s -p "partition" 2>&1 | filecheck %s

// CHECK: error: @main: argument 0 has no dist.layout; run propagate-sharding before partition
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
