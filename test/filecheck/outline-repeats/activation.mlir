// RUN: distir-opt %s -p "outline-repeats{min-ops=2}" | filecheck %s

// The activation before the first layer looks like the end of a layer. A layer begins with an op
// that has a parameter nevertheless, so that calls have the scopes of the layers.
// CHECK:      %a = onnx.Relu(%x)
// CHECK-NEXT: %b = func.call @h(%a, %w0) {scope = "h.0"}
// CHECK-NEXT: %c = func.call @h(%b, %w1) {scope = "h.1"}
// CHECK-NEXT: %d = func.call @h(%c, %w2) {scope = "h.2"}
// CHECK-NEXT: func.return %d
// CHECK:      func.func private @h(
// CHECK-NEXT:   onnx.MatMul({{.*}}) {scope = "h.*"}
// CHECK-NEXT:   onnx.Relu({{.*}}) {scope = "h.*"}

func.func @main(%x: tensor<4x4xf32>, %w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %w2: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %a = onnx.Relu(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %p = onnx.MatMul(%a, %w0) {scope = "h.0"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = onnx.Relu(%p) {scope = "h.0"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = onnx.MatMul(%b, %w1) {scope = "h.1"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %c = onnx.Relu(%q) {scope = "h.1"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %r = onnx.MatMul(%c, %w2) {scope = "h.2"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %d = onnx.Relu(%r) {scope = "h.2"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %d : tensor<4x4xf32>
}
