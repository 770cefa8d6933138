// RUN: distir-opt %s -p fold-shapes --verify-diagnostics | filecheck %s
// RUN: distir-opt %s -p "inline-calls,fold-shapes" | filecheck %s --check-prefix=INLINED

// CHECK: function @flat is called for tensors of different shapes, but a function has one type; run inline-calls before fold-shapes

// INLINED: onnx.Flatten(%a) : (tensor<2x3xf32>) -> tensor<2x3xf32>
// INLINED: onnx.Flatten(%b) : (tensor<4x5xf32>) -> tensor<4x5xf32>

func.func @flat(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %y = onnx.Flatten(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %y : tensor<?x?xf32>
}
func.func @main(%x: tensor<2x3xf32>, %y: tensor<4x5xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %a = onnx.Relu(%x) : (tensor<2x3xf32>) -> tensor<?x?xf32>
  %b = onnx.Relu(%y) : (tensor<4x5xf32>) -> tensor<?x?xf32>
  %c = func.call @flat(%a) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %d = func.call @flat(%b) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  func.return %c, %d : tensor<?x?xf32>, tensor<?x?xf32>
}
