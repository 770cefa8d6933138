// RUN: distir-opt %s -p pack-saved-tensors | filecheck %s
// RUN: distir-opt %s -p pack-saved-tensors,release-saved-tensors | filecheck %s --check-prefix RELEASED

// What the forward saves for the backward travels as one list, which the backward empties, as
// nobody else looks into it.

func.func private @forward(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %a = onnx.Exp(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = onnx.Sin(%a) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = onnx.Tanh(%b) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y, %a, %b : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

func.func private @backward(%dy: tensor<4x4xf32>, %a: tensor<4x4xf32>, %b: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = onnx.Mul(%dy, %a) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = onnx.Mul(%0, %b) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %1 : tensor<4x4xf32>
}

func.func @main(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y, %a, %b = func.call @forward(%x) : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
  %dy = onnx.Neg(%y) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %dx = func.call @backward(%dy, %a, %b) : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %dx : tensor<4x4xf32>
}

// CHECK:      func.func private @forward(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tuple<tensor<4x4xf32>, tensor<4x4xf32>>)
// CHECK:        %saved = torch.pack %a, %b : (tensor<4x4xf32>, tensor<4x4xf32>) -> tuple<tensor<4x4xf32>, tensor<4x4xf32>>
// CHECK-NEXT:   func.return %y, %saved
// CHECK:      func.func private @backward(%dy: tensor<4x4xf32>, %saved: tuple<tensor<4x4xf32>, tensor<4x4xf32>>) -> tensor<4x4xf32>
// CHECK-NEXT:   %a, %b = torch.unpack %saved : (tuple<tensor<4x4xf32>, tensor<4x4xf32>>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK:      func.func @main
// CHECK-NEXT:   %y, %saved = func.call @forward(%x)
// CHECK-NEXT:   %dy = onnx.Neg(%y)
// CHECK-NEXT:   %dx = func.call @backward(%dy, %saved)

// RELEASED: %a, %b = torch.unpack %saved {releases}
