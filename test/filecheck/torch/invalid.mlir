// RUN: not distir-opt %s -t torch 2>&1 | filecheck %s

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = onnx.Bernoulli(%x) {scope = "drop"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// CHECK: onnx.Bernoulli %y (in drop) has no torch lowering
