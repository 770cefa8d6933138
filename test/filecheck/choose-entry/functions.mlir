// RUN: distir-opt %s -p "choose-entry{entry=step},distribute{d=2 cluster=cpu}" | filecheck %s
// RUN: distir-opt %s -p "choose-entry{entry=main}" | filecheck %s --check-prefix MAIN
// RUN: not distir-opt %s -p "choose-entry{entry=layer}" 2>&1 | filecheck %s --check-prefix PRIVATE
// RUN: sed s/@main/@other/ %s | not distir-opt -p "distribute{d=2 cluster=cpu}" 2>&1 | filecheck %s --check-prefix NONE

// A public function is chosen as the program; the others stay as they are.

// CHECK:      func.func @main(%x: tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-NEXT:   func.call @layer
// CHECK:      func.func @main_1(%x: tensor<8x16xf32>) -> tensor<8x16xf32>
// CHECK-NEXT:   func.call @layer_

// MAIN:       func.func @step(
// MAIN:       func.func @main(
// PRIVATE:    error: the module has no public function 'layer'; it has step, main
// NONE:       error: the module has 3 functions and none is called @main; name the program's entry function @main, or choose it with --entry NAME or the pass choose-entry{entry=NAME}
func.func @step(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %h = func.call @layer(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %h : tensor<8x16xf32>
}
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %h = func.call @layer(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %h : tensor<8x16xf32>
}
func.func private @layer(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %h = onnx.Relu(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %h : tensor<8x16xf32>
}
