// RUN: distir-opt %s -p inline-calls --split-input-file | filecheck %s

// The body takes the place of each call, with the call's number for `*` in its scopes.
// Private functions that were called are gone; others stay.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = func.call @layer(%x) {scope = "h.0"} : (tensor<4xf32>) -> tensor<4xf32>
  %b = func.call @layer(%a) {scope = "h.1"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %b : tensor<4xf32>
}
func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = onnx.Sin(%x) {scope = "h.*.mlp"} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = func.call @act(%0) {scope = "h.*.act"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %1 : tensor<4xf32>
}
func.func private @act(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  func.return %x : tensor<4xf32>
}

// CHECK:       func.func @main(%x: tensor<4xf32>)
// CHECK-NEXT:    [[a:%.+]] = onnx.Sin(%x) {scope = "h.0.mlp"}
// CHECK-NEXT:    [[b:%.+]] = onnx.Relu([[a]]) {scope = "h.0.act"}
// CHECK-NEXT:    [[c:%.+]] = onnx.Sin([[b]]) {scope = "h.1.mlp"}
// CHECK-NEXT:    [[d:%.+]] = onnx.Relu([[c]]) {scope = "h.1.act"}
// CHECK-NEXT:    func.return [[d]]
// CHECK-NOT:   private
// CHECK:       func.func @other

// -----

// A function may just return its arguments.

func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a, %b = func.call @swap(%x, %y) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return %a, %b : tensor<4xf32>, tensor<4xf32>
}
func.func private @swap(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  func.return %y, %x : tensor<4xf32>, tensor<4xf32>
}

// CHECK:       func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>)
// CHECK-NEXT:    func.return %y, %x
