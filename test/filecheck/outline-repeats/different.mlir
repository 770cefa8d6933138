// RUN: distir-opt %s -p outline-repeats --split-input-file | filecheck %s

// Equal ops with other dataflow: the second block subtracts the other way round.

// CHECK-LABEL: @crossed
// CHECK-NOT:   func.call
func.func @crossed(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a0 = onnx.Sin(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b0 = onnx.Cos(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  %c0 = onnx.Sub(%a0, %b0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d0 = onnx.Tanh(%c0) : (tensor<4xf32>) -> tensor<4xf32>
  %a1 = onnx.Sin(%d0) : (tensor<4xf32>) -> tensor<4xf32>
  %b1 = onnx.Cos(%a1) : (tensor<4xf32>) -> tensor<4xf32>
  %c1 = onnx.Sub(%b1, %a1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d1 = onnx.Tanh(%c1) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %d1 : tensor<4xf32>
}

// -----

// A constant is part of what an op computes.

// CHECK-LABEL: @constants
// CHECK-NOT:   func.call
func.func @constants(%x: tensor<4xf32>) -> tensor<4xf32> {
  %two = onnx.Constant() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %three = onnx.Constant() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %a0 = onnx.Sin(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b0 = onnx.Mul(%a0, %two) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %c0 = onnx.Cos(%b0) : (tensor<4xf32>) -> tensor<4xf32>
  %d0 = onnx.Tanh(%c0) : (tensor<4xf32>) -> tensor<4xf32>
  %a1 = onnx.Sin(%d0) : (tensor<4xf32>) -> tensor<4xf32>
  %b1 = onnx.Mul(%a1, %three) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %c1 = onnx.Cos(%b1) : (tensor<4xf32>) -> tensor<4xf32>
  %d1 = onnx.Tanh(%c1) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %d1 : tensor<4xf32>
}
