// RUN: distir-opt %s -p "partition{lower=false}" | filecheck %s

// The result of a call is resharded. The function is not called again for another layout, in
// which it does not return it.

device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK:      func.func @main
// CHECK-NEXT: %h = onnx.Relu(%x)
// CHECK-NEXT: %y = func.call @f(%h) {{.*}} -> tensor<8xf32, #dist.layout<@mesh, [{d}]>>
// CHECK-NEXT: %[[Y:.*]] = dist.reshard %y
// CHECK-NEXT: func.return %[[Y]]
func.func private @f(%x: tensor<8xf32> {dist.layout = #dist.layout<@mesh>}) -> tensor<8xf32> {
  %r = onnx.Tanh(%x) {dist.operand_layouts = [#dist.layout<@mesh, [{d}]>], dist.result_layouts = [#dist.layout<@mesh, [{d}]>]} : (tensor<8xf32>) -> tensor<8xf32>
  func.return {dist.operand_layouts = [#dist.layout<@mesh, [{d}]>], dist.result_layouts = []} %r : tensor<8xf32>
}
func.func @main(%x: tensor<8xf32> {dist.layout = #dist.layout<@mesh>}) -> tensor<8xf32> {
  %h = onnx.Relu(%x) {dist.operand_layouts = [#dist.layout<@mesh>], dist.result_layouts = [#dist.layout<@mesh>]} : (tensor<8xf32>) -> tensor<8xf32>
  %y = func.call @f(%h) {dist.operand_layouts = [#dist.layout<@mesh>], dist.result_layouts = [#dist.layout<@mesh, [{d}]>]} : (tensor<8xf32>) -> tensor<8xf32>
  func.return {dist.operand_layouts = [#dist.layout<@mesh>], dist.result_layouts = []} %y : tensor<8xf32>
}
