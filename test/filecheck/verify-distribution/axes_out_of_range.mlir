// RUN: not distir-opt %s -p verify-distribution 2>&1 | filecheck %s

// Axes behind an op are not seen when types are inferred.
// CHECK: onnx.Slice %y names axis 4, but its operand has 2 dimensions

device.mesh @mesh on @box <d = 2> [0 to 2]
func.func @main(%x: tensor<4x8xf32, #dist.layout<@mesh, [{d}, {}]>>) -> tensor<4x4xf32, #dist.layout<@mesh, [{d}, {}]>> {
  %zero = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64, #dist.layout<@mesh>>
  %four = onnx.Constant() {value = dense<4> : tensor<1xi64>} : () -> tensor<1xi64, #dist.layout<@mesh>>
  %axes = onnx.Identity(%four) : (tensor<1xi64, #dist.layout<@mesh>>) -> tensor<1xi64, #dist.layout<@mesh>>
  %y = onnx.Slice(%x, %zero, %four, %axes) : (tensor<4x8xf32, #dist.layout<@mesh, [{d}, {}]>>, tensor<1xi64, #dist.layout<@mesh>>, tensor<1xi64, #dist.layout<@mesh>>, tensor<1xi64, #dist.layout<@mesh>>) -> tensor<4x4xf32, #dist.layout<@mesh, [{d}, {}]>>
  func.return %y : tensor<4x4xf32, #dist.layout<@mesh, [{d}, {}]>>
}
