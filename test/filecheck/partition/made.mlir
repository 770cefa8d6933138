// RUN: distir-opt %s -p "distribute{d=2 cluster=cpu},verify-distribution" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 cluster=cpu},project{rank=1}" | filecheck %s --check-prefix RANK

// Constants, empties, fills and broadcasts are made in the layout of their users. Of %n, whose
// elements differ, each device has the whole and takes its part.

// CHECK:      %c = onnx.Constant() {value = dense<1.000000e+00> : tensor<8x16xf32>} : () -> tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK:      %z = onnx.ConstantOfShape(%shape) {{.*}} -> tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK:      %g = linalg.fill ins(%two : f32) outs(%e : tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>)
// CHECK-NEXT: %b = linalg.broadcast ins(%r:tensor<16xf32, #dist.layout<@mesh>>) outs(%{{.*}}:tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>) dimensions = [0]
// CHECK-NEXT: %n = arith.constant dense<{{.*}}> : tensor<8x1xf32, #dist.layout<@mesh>>
// CHECK-NEXT: onnx.Add(%x, %c)
// CHECK-NEXT: onnx.Add({{.*}}, %z)
// CHECK-NEXT: arith.mulf
// CHECK-NEXT: arith.addf
// CHECK-NEXT: collective.slice %n over [d]
// CHECK-NEXT: onnx.Add

// RANK:       %c = onnx.Constant() {value = dense<1.000000e+00> : tensor<4x16xf32>} : () -> tensor<4x16xf32>
// RANK:       [[S:%.*]] = onnx.Constant() {value = dense<[4, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
// RANK-NEXT:  %z = onnx.ConstantOfShape([[S]])
// RANK:       %g = linalg.fill ins(%two : f32) outs(%e : tensor<4x16xf32>) -> tensor<4x16xf32>
func.func @main(%x: tensor<8x16xf32>, %r: tensor<16xf32>) -> tensor<8x16xf32> {
  %c = onnx.Constant() {value = dense<1.0> : tensor<8x16xf32>} : () -> tensor<8x16xf32>
  %shape = onnx.Constant() {value = dense<[8, 16]> : tensor<2xi64>} : () -> tensor<2xi64>
  %z = onnx.ConstantOfShape(%shape) : (tensor<2xi64>) -> tensor<8x16xf32>
  %e = tensor.empty() : tensor<8x16xf32>
  %two = arith.constant 2.0 : f32
  %g = linalg.fill ins(%two : f32) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %b = linalg.broadcast ins(%r : tensor<16xf32>) outs(%e : tensor<8x16xf32>) dimensions = [0]
  %n = arith.constant dense<[[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0], [8.0]]> : tensor<8x1xf32>
  %0 = onnx.Add(%x, %c) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = onnx.Add(%0, %z) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = arith.mulf %1, %g : tensor<8x16xf32>
  %3 = arith.addf %2, %b : tensor<8x16xf32>
  %4 = onnx.Add(%3, %n) : (tensor<8x16xf32>, tensor<8x1xf32>) -> tensor<8x16xf32>
  func.return %4 : tensor<8x16xf32>
}
