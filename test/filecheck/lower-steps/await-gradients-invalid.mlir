// RUN: not distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{k=2 cluster=cpu},project{rank=0},await-gradients" 2>&1 | filecheck %s

// An output of the whole batch has no part for each micro-batch.
// CHECK: error: await-gradients: an output or its gradient (onnx.{{.*}}) does not consist of 2 parts for the micro-batches along its first dimension
func.func @main(%x: tensor<4x4xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<4x4xf32> {dist.name = "y"}, tensor<f32> {dist.name = "mean"}) {
  %y = onnx.MatMul(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %mean = onnx.ReduceMean(%y) {keepdims = 0 : i64} : (tensor<4x4xf32>) -> tensor<f32>
  func.return %y, %mean : tensor<4x4xf32>, tensor<f32>
}
