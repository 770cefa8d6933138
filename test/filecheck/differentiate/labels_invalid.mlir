// RUN: not distir-opt %s -p "differentiate{loss=none}" 2>&1 | filecheck %s

// A program may bring its own loss; its labels must fit the scores.

// CHECK: onnx.SoftmaxCrossEntropyLoss (in head.loss) cannot take operands of types (tensor<4x5xf32>, tensor<4x3xi64>): labels is [4, 3], which does not fit the others in N C *S, N *S, C -> *L, N C *S
func.func @main(%x: tensor<4x5xf32> {dist.role = "input", dist.name = "x"}, %y: tensor<4x3xi64> {dist.role = "label", dist.name = "y"}, %w: tensor<5xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<f32> {
  %h = onnx.Mul(%x, %w) : (tensor<4x5xf32>, tensor<5xf32>) -> tensor<4x5xf32>
  %loss = onnx.SoftmaxCrossEntropyLoss(%h, %y) {scope = "head.loss"} : (tensor<4x5xf32>, tensor<4x3xi64>) -> tensor<f32>
  func.return %loss : tensor<f32>
}
