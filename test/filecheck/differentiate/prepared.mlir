// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd learning-rate=0.1}" | filecheck %s

// A backward prepares parameters again (here it transposes and splits them) instead of keeping what the forward made
// of them, and each right before its first use, so that they are in memory one at a time.

func.func private @layer(%x: tensor<4x8xf32>, %w: tensor<8x8xf32> {dist.role = "parameter"}, %v: tensor<8x16xf32> {dist.role = "parameter"}) -> tensor<4x8xf32> {
  %wt = onnx.Transpose(%w) {perm = [1 : i64, 0 : i64]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %wn = onnx.Neg(%wt) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %h = onnx.MatMul(%x, %wn) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %sizes = onnx.Constant() {value = dense<[8, 8]> : tensor<2xi64>} : () -> tensor<2xi64>
  %v0, %v1 = onnx.Split(%v, %sizes) {axis = 1 : i64} : (tensor<8x16xf32>, tensor<2xi64>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  %g = onnx.MatMul(%h, %v0) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y = onnx.MatMul(%g, %v1) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
                %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<8x16xf32> {dist.role = "parameter", dist.name = "v"},
                %u: tensor<8x8xf32> {dist.role = "parameter", dist.name = "u"}, %t: tensor<8x16xf32> {dist.role = "parameter", dist.name = "t"}) -> (tensor<4x8xf32> {dist.name = "y"}) {
  %h = func.call @layer(%x, %w, %v) : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  %y = func.call @layer(%h, %u, %t) : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK:       func.func private @layer_backward_1(
// CHECK-NEXT:    %sizes = onnx.Constant
// CHECK-NEXT:    %v0, %v1 = onnx.Split(%v, %sizes)
// CHECK-NEXT:    [[g:%.+]] = onnx.Gemm(%gradient, %v1) {transB = 1 : i64}
// CHECK-NEXT:    [[v1:%.+]] = onnx.Gemm(%g, %gradient) {transA = 1 : i64}
// CHECK-NEXT:    [[h:%.+]] = onnx.Gemm([[g]], %v0) {transB = 1 : i64}
// CHECK-NEXT:    [[v0:%.+]] = onnx.Gemm(%h, [[g]]) {transA = 1 : i64}
// CHECK-NEXT:    onnx.Concat([[v0]], [[v1]])
// CHECK-NEXT:    %wt = onnx.Transpose(%w)
// CHECK-NEXT:    %wn = onnx.Neg(%wt)
// CHECK-NEXT:    onnx.Gemm([[h]], %wn)
