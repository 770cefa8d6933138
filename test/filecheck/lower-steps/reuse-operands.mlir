// RUN: distir-opt %s -p reuse-operands | filecheck %s
// RUN: distir-opt %s -p reuse-operands,reuse-operands | filecheck %s

// A sum works in the memory of an operand that nobody else needs, not in an argument of the
// program; so does the sum of the gradients of look-ups.

func.func @main(%x: tensor<4x4xf32>, %y: tensor<4x4xf32>, %d: tensor<3x4xf32>, %i: tensor<3xi64>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %p = onnx.MatMul(%x, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = onnx.Add(%x, %p) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = onnx.Add(%x, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = onnx.MatMul(%y, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %u = torch.add_look_ups %q, %d, %i : (tensor<4x4xf32>, tensor<3x4xf32>, tensor<3xi64>) -> tensor<4x4xf32>
  func.return %s, %t, %u : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// CHECK:        %s = torch.add_into %p, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK-NEXT:   %t = onnx.Add(%x, %y)
// CHECK-NEXT:   %q = onnx.MatMul
// CHECK-NEXT:   %u = torch.add_look_ups %q, %d, %i {torch.in_place}
