// RUN: distir-opt %s -p "verify-distribution,project{rank=1}" | filecheck %s

// A public function that the program does not call stays as it is.

// CHECK:      func.func @main(%x: tensor<2xf32> {{.*}}
// CHECK:      func.func @eval(%x: tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   dist.constrain %x
// CHECK-NEXT:   func.return

device.mesh @pair on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<4xf32, #dist.layout<@pair, [{t}]>>) -> tensor<4xf32, #dist.layout<@pair, [{t}]>> {
  %y = onnx.Neg(%x) : (tensor<4xf32, #dist.layout<@pair, [{t}]>>) -> tensor<4xf32, #dist.layout<@pair, [{t}]>>
  func.return %y : tensor<4xf32, #dist.layout<@pair, [{t}]>>
}
func.func @eval(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = dist.constrain %x to <@pair, [{t}]> : tensor<4xf32> -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
