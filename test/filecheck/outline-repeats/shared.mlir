// RUN: distir-opt %s -p outline-repeats | filecheck %s

// The first layer also computes a mask that every layer uses. It is not part of the
// repeat: it moves before the call and is passed to all three.

func.func @main(%x: tensor<4xf32>, %ids: tensor<4xf32>) -> tensor<4xf32> {
  %a0 = onnx.Sin(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %mask = onnx.Neg(%ids) : (tensor<4xf32>) -> tensor<4xf32>
  %b0 = onnx.Add(%a0, %mask) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c0 = onnx.Relu(%b0) : (tensor<4xf32>) -> tensor<4xf32>
  %d0 = onnx.Cos(%c0) : (tensor<4xf32>) -> tensor<4xf32>
  %a1 = onnx.Sin(%d0) : (tensor<4xf32>) -> tensor<4xf32>
  %b1 = onnx.Add(%a1, %mask) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c1 = onnx.Relu(%b1) : (tensor<4xf32>) -> tensor<4xf32>
  %d1 = onnx.Cos(%c1) : (tensor<4xf32>) -> tensor<4xf32>
  %a2 = onnx.Sin(%d1) : (tensor<4xf32>) -> tensor<4xf32>
  %b2 = onnx.Add(%a2, %mask) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c2 = onnx.Relu(%b2) : (tensor<4xf32>) -> tensor<4xf32>
  %d2 = onnx.Cos(%c2) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %d2 : tensor<4xf32>
}

// CHECK:       func.func @main(
// CHECK-NEXT:    %mask = onnx.Neg(%ids)
// CHECK-NEXT:    %d0 = func.call @repeat0(%x, %mask)
// CHECK-NEXT:    %d1 = func.call @repeat0(%d0, %mask)
// CHECK-NEXT:    %d2 = func.call @repeat0(%d1, %mask)
// CHECK-NEXT:    func.return %d2
