// RUN: distir-opt %s -p fuse-operators --split-input-file | filecheck %s
// RUN: distir-opt %s -p fuse-operators,fuse-operators --split-input-file | filecheck %s

// A product and a sum with a vector are one call, a gated value is one operator; what they are
// made of goes. The call
// keeps its scope.

func.func @main(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %b: tensor<4xf32>) -> tensor<2x4xf32> {
  %p = onnx.MatMul(%x, %w) {scope = "fc"} : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %l = onnx.Add(%p, %b) {scope = "fc"} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %i = onnx.Identity(%l) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %s = onnx.Sigmoid(%i) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %y = onnx.Mul(%s, %i) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %l = torch.linear %x, %w, %b {scope = "fc", transposed}
// CHECK-NEXT:   %y = onnx.Swish(%l)
// CHECK-NEXT:   func.return %y

// -----

// A product that something else uses too stays; so does a gate of another value, and
// communication that nothing uses.

func.func @main(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>, %b: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %p = onnx.MatMul(%x, %w) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  %l = onnx.Add(%p, %b) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %s = onnx.Sigmoid(%p) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  %y = onnx.Mul(%s, %l) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %n = onnx.Relu(%l) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %l, %y : tensor<2x4xf32>, tensor<2x4xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %p = onnx.MatMul
// CHECK-NEXT:   %l = onnx.Add
// CHECK-NEXT:   %s = onnx.Sigmoid
// CHECK-NEXT:   %y = onnx.Mul
// CHECK-NEXT:   func.return %l, %y

// A product of tensors and a sum are one call, unless the product has another use or is by a number.

func.func @products(%x: tensor<2x4xf32>, %y: tensor<4xf32>, %z: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) {
  %p = onnx.Mul(%x, %y) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %a = onnx.Add(%p, %z) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %q = onnx.Mul(%z, %y) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
  %b = onnx.Add(%z, %q) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %r = onnx.Mul(%x, %half) : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %c = onnx.Add(%r, %z) : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %a, %b, %c, %q : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
}

// CHECK:      func.func @products
// CHECK-NEXT:   %a = torch.addcmul %z, %x, %y :
// CHECK-NEXT:   %q = onnx.Mul
// CHECK-NEXT:   %b = onnx.Add
