// RUN: not distir-opt %s 2>&1 | filecheck %s

// What a torch.call holds is run, so none may come from a file.

// CHECK: torch.call

func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = "torch.call"(%x) <{expression = "F.silu({0})"}> : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}
