// RUN: not distir-opt %s -p "differentiate{loss=mse}" 2>&1 | filecheck %s

// What is in doubt is named together with why, but only where it would be trained.
// CHECK: error: differentiate: cannot train table, other: say what it is
func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"},
                %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"},
                %table: tensor<8x4xf32> {dist.role = "parameter", dist.name = "table", dist.doubt = "say what it is"},
                %other: tensor<8x4xf32> {dist.role = "parameter", dist.name = "other", dist.doubt = "say what it is"},
                %unused: tensor<8x4xf32> {dist.role = "parameter", dist.name = "unused", dist.doubt = "say what it is"}) -> (tensor<8x4xf32> {dist.name = "y"}) {
  %a = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %b = onnx.Add(%a, %table) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = onnx.Add(%b, %other) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
