// RUN: not distir-opt %s -p "differentiate{loss=mse}" 2>&1 | filecheck %s

// CHECK: error: differentiate: the program has no argument with dist.role "parameter", so there is nothing to train
func.func @main(%x: tensor<4xf32> {dist.role = "input"}) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}
