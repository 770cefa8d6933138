// RUN: not distir-opt %s -p "verify-distribution" 2>&1 | filecheck %s

device.mesh @mesh on @box <t = 2> [0 to 2]

// A forgotten all-reduce is a type error.
// CHECK: error: @main: onnx.Add %z (in block): operand 0 has layout <@mesh, partial sum {t}>, but the op cannot work on values that are partial over 't' there; expected layout <@mesh>
func.func @main(%x: tensor<4x8xf32, #dist.layout<@mesh, [{}, {t}]>>, %w: tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>, %b: tensor<4xf32, #dist.layout<@mesh>>) -> tensor<4x4xf32, #dist.layout<@mesh>> {
  %y = onnx.MatMul(%x, %w) : (tensor<4x8xf32, #dist.layout<@mesh, [{}, {t}]>>, tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>) -> tensor<4x4xf32, #dist.layout<@mesh, partial sum {t}>>
  %z = onnx.Add(%y, %b) {scope = "block"} : (tensor<4x4xf32, #dist.layout<@mesh, partial sum {t}>>, tensor<4xf32, #dist.layout<@mesh>>) -> tensor<4x4xf32, #dist.layout<@mesh>>
  func.return %z : tensor<4x4xf32, #dist.layout<@mesh>>
}
