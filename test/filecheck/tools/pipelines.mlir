// Three ways to name the same passes.
// RUN: distir-opt %s -p "distribute{d=2 t=2},verify-distribution" | filecheck %s
// RUN: distir-opt %s --pass-pipeline="builtin.module(distribute{d=2 t=2},verify-distribution)" | filecheck %s
// RUN: distir-opt %s --pass-pipeline "builtin.module(distribute{t=2 d=2})" | distir-opt -p verify-distribution | filecheck %s

// CHECK: device.mesh @mesh on @cluster <d = 2, t = 2> [0 to 4]
// CHECK-NEXT: func.func @main(%x: tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>> {dist.role = "input"}
func.func @main(%x: tensor<8x16xf32> {dist.role = "input"}, %w: tensor<16x32xf32> {dist.role = "parameter"}) -> tensor<8x32xf32> {
  // CHECK-NEXT: onnx.MatMul(%x, %w)
  %y = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  func.return %y : tensor<8x32xf32>
}
