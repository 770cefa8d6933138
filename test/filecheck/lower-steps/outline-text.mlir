// RUN: distir-opt %s -p outline-text | filecheck %s

// Ops that are done twice become a function, which only makes the text shorter.

func.func @main(%x: tensor<4x8xf32>, %p: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %a0 = onnx.Sin(%p) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b0 = onnx.Mul(%a0, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c0 = onnx.Tanh(%b0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d0 = onnx.Sub(%c0, %a0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %a1 = onnx.Sin(%d0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b1 = onnx.Mul(%a1, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c1 = onnx.Tanh(%b1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d1 = onnx.Sub(%c1, %a1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %d1 : tensor<4x8xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %d0 = func.call @repeat0(%p, %x)
// CHECK-NEXT:   %d1 = func.call @repeat0(%d0, %x)
// CHECK-NEXT:   func.return %d1
// CHECK:      func.func private @repeat0{{.*}} attributes {torch.repeat}
