// RUN: not distir-opt %s -p "differentiate{loss=mse}" 2>&1 | filecheck %s

// The labels come in an argument of that name.

// CHECK: error: differentiate: the program already has an argument 'labels'
func.func @main(%labels: tensor<4x4xf32> {dist.role = "input", dist.name = "labels"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<4x4xf32> {
  %y = onnx.MatMul(%labels, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y : tensor<4x4xf32>
}
