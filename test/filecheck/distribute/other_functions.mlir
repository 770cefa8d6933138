// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" | distir-opt -p verify-distribution | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 p=2 k=2 cluster=cpu}" | distir-opt -p verify-distribution | filecheck %s --check-prefix PIPELINE

// Public functions that the program does not call stay as they are, with callees of their
// own where the program changes these; private ones that nothing calls are removed.

// CHECK:      func.func @main(%x: tensor<8x16xf32, #dist.layout
// CHECK:      func.func @eval(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   func.call @layer_2(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>)
// CHECK-NEXT:   func.call @own
// CHECK:      func.func private @own(%x: tensor<8x16xf32>)
// CHECK-NOT:  @unused
// CHECK:      func.func private @layer_2(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>)
// CHECK-NEXT:   onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>

// PIPELINE-LABEL: func.func @main(
// PIPELINE:       func.func @eval(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32>
// PIPELINE:         func.call @layer_1
// PIPELINE:       func.func private @own(%x: tensor<8x16xf32>)
// PIPELINE:       func.func private @layer_1(%x: tensor<8x16xf32>

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<16x16xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<16x16xf32> {dist.role = "parameter", dist.name = "v"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %h = func.call @layer(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %i = func.call @layer(%h, %v) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  func.return %i : tensor<8x16xf32>
}
func.func @eval(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %h = func.call @layer(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %g = func.call @own(%h) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %g : tensor<8x16xf32>
}
func.func private @own(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %h = onnx.Neg(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %h : tensor<8x16xf32>
}
func.func private @layer(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %r = onnx.Relu(%h) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %r : tensor<8x16xf32>
}
func.func private @unused(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %h = onnx.Neg(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %h : tensor<8x16xf32>
}
