// RUN: not distir-opt %s -p "project{rank=0}" 2>&1 | filecheck %s
// RUN: not distir-opt %s -t torch 2>&1 | filecheck %s

// CHECK: error: the functions call each other in a circle (@main -> @other -> @main)

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @other(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func private @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
