// RUN: distir-opt %s -p outline-repeats | filecheck %s --check-prefix=DEFAULT
// RUN: distir-opt %s -p "outline-repeats{min-ops=2}" | filecheck %s --check-prefix=SHORT
// RUN: distir-opt %s -p "outline-repeats{independent=true min-ops=3}" | filecheck %s --check-prefix=INDEPENDENT
// RUN: not distir-opt %s -p "outline-repeats{min-ops=1}" 2>&1 | filecheck %s --check-prefix=ERROR

// Two heads of three ops, which do not use each other's results, and a chain of three
// pairs. By default only chains of at least four ops are outlined.

// DEFAULT-NOT: func.call

// SHORT:       onnx.Abs
// SHORT-COUNT-3: func.call @repeat0
// SHORT-NOT:   func.call
// SHORT:       func.func private @repeat0(
// SHORT-NEXT:  onnx.Relu
// SHORT-NEXT:  onnx.Neg
// SHORT-NEXT:  func.return

// INDEPENDENT-COUNT-2: func.call @repeat0(%x)
// INDEPENDENT:  onnx.Add
// INDEPENDENT-NEXT:  onnx.Relu

// ERROR: error: outline-repeats: min-ops is 1
// ERROR-SAME: give min-ops=2 or more

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a0 = onnx.Sin(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b0 = onnx.Cos(%a0) : (tensor<4xf32>) -> tensor<4xf32>
  %c0 = onnx.Abs(%b0) : (tensor<4xf32>) -> tensor<4xf32>
  %a1 = onnx.Sin(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b1 = onnx.Cos(%a1) : (tensor<4xf32>) -> tensor<4xf32>
  %c1 = onnx.Abs(%b1) : (tensor<4xf32>) -> tensor<4xf32>
  %0 = onnx.Add(%c0, %c1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = onnx.Relu(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = onnx.Neg(%1) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = onnx.Relu(%2) : (tensor<4xf32>) -> tensor<4xf32>
  %4 = onnx.Neg(%3) : (tensor<4xf32>) -> tensor<4xf32>
  %5 = onnx.Relu(%4) : (tensor<4xf32>) -> tensor<4xf32>
  %6 = onnx.Neg(%5) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %6 : tensor<4xf32>
}
