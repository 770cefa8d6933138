// RUN: not distir-opt %s -p "verify-distribution" 2>&1 | filecheck %s

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: error: @main: onnx.Relu %y: result 0 has layout <@mesh>, expected layout <@mesh, [{t}, {}]> from the layouts of its operands
func.func @main(%x: tensor<4x8xf32, #dist.layout<@mesh, [{t}, {}]>>) -> tensor<4x8xf32, #dist.layout<@mesh>> {
  %y = onnx.Relu(%x) : (tensor<4x8xf32, #dist.layout<@mesh, [{t}, {}]>>) -> tensor<4x8xf32, #dist.layout<@mesh>>
  func.return %y : tensor<4x8xf32, #dist.layout<@mesh>>
}
