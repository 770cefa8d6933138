// RUN: not distir-opt %s -p "differentiate{loss=mse}" 2>&1 | filecheck %s

// What is taken out of a sequence would have a gradient: it does not end there in silence.
// CHECK: onnx.SequenceAt %h {{.*}}has no gradient rule
func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"},
                %i: tensor<i64> {dist.role = "input", dist.name = "i"},
                %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<8x4xf32> {dist.name = "y"}) {
  %a = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %s = onnx.SequenceConstruct(%x, %a) : (tensor<8x4xf32>, tensor<8x4xf32>) -> !onnx.seq<tensor<8x4xf32>>
  %h = onnx.SequenceAt(%s, %i) : (!onnx.seq<tensor<8x4xf32>>, tensor<i64>) -> tensor<8x4xf32>
  %y = onnx.Add(%a, %h) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
