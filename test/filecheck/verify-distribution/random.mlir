// RUN: not distir-opt %s -p "verify-distribution" 2>&1 | filecheck %s

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: error: @main: onnx.RandomNormalLike %y: draws random numbers, and every device would draw others
func.func @main(%x: tensor<4xf32, #dist.layout<@mesh>>) -> tensor<4xf32, #dist.layout<@mesh>> {
  %y = onnx.RandomNormalLike(%x) : (tensor<4xf32, #dist.layout<@mesh>>) -> tensor<4xf32, #dist.layout<@mesh>>
  func.return %y : tensor<4xf32, #dist.layout<@mesh>>
}
