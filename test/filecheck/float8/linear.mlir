// RUN: distir-opt %s -p "float8{scaling=row}" | filecheck %s
// RUN: distir-opt %s -p "float8{scaling=row keep=none}" | filecheck %s --check-prefix=ALL
// RUN: not distir-opt %s -p "float8{keep=top}" 2>&1 | filecheck %s --check-prefix=KEEP
// RUN: distir-opt %s -p "float8{scaling=row-gw-hp},differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=GRAD

// Products with parameters; what the results follow from, the head, stays as it is, and so do
// products of activations. A bias is added behind the product.
// CHECK:      [[W:%.*]] = onnx.Transpose(%w1)
// CHECK-NEXT: [[Y:%.*]] = train.float8_linear %x, [[W]] {scope = "up", scaling = "row", a_format = "e4m3", b_format = "e4m3"}
// CHECK-NEXT: onnx.Add([[Y]], %b1)
// CHECK:      onnx.MatMul{{.*}}scope = "scores"
// CHECK:      onnx.MatMul{{.*}}scope = "head"

// ALL:      train.float8_linear{{.*}}scope = "up"
// ALL:      onnx.MatMul{{.*}}scope = "scores"
// ALL:      train.float8_linear{{.*}}scope = "head"

// KEEP: error: float8: no matrix product has a scope that matches 'top'; the scopes of those with parameters are: up, head

// The gradient that comes in is in e5m2. That of the weight is a product as it was.
// GRAD: train.float8_linear{{.*}}a_format = "e4m3", b_format = "e4m3"
// GRAD: onnx.Gemm(%{{.*}}, %x) {transA = 1 : i64

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<6x8xf32> {dist.role = "parameter", dist.name = "w1"}, %b1: tensor<6xf32> {dist.role = "parameter", dist.name = "b1"}, %w2: tensor<4x2xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<4x2xf32> {
  %h = onnx.Gemm(%x, %w1, %b1) {transB = 1 : i64, scope = "up"} : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  %t = onnx.Transpose(%h) {perm = [1 : i64, 0 : i64]} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %s = onnx.MatMul(%h, %t) {scope = "scores"} : (tensor<4x6xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
  %y = onnx.MatMul(%s, %w2) {scope = "head"} : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}
