// RUN: not distir-opt %s -p "quantize-weights" 2>&1 | filecheck %s

// A tied table is looked up too, so that it keeps its numbers.
// CHECK: error: quantize-weights: the program has no product of activations and a matrix of parameters, beside the head

func.func @main(%x: tensor<4xi64> {dist.role = "input", dist.name = "x"}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<8x2xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<4x2xf32> {
  %e = onnx.Gather(%w, %x) : (tensor<8x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  %h = onnx.MatMul(%e, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y = onnx.MatMul(%h, %v) : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}
