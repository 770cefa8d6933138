// RUN: distir-opt %s -p batch-statistics | filecheck %s

// Outside of training mode nothing changes.

// CHECK:      func.func @main(
// CHECK-NEXT: %y = onnx.BatchNormalization(%x, %v, %v, %v, %v)
// CHECK-NEXT: func.return %y
func.func @main(%x: tensor<4x6x2xf32>, %v: tensor<6xf32>) -> tensor<4x6x2xf32> {
  %y = onnx.BatchNormalization(%x, %v, %v, %v, %v) : (tensor<4x6x2xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<4x6x2xf32>
  func.return %y : tensor<4x6x2xf32>
}
