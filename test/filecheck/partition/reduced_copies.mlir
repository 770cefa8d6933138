// RUN: distir-opt %s -p "partition{lower=false}" | filecheck %s

// Each device squares its part of the copy of %h, and the sums are added. No sum is made of
// the whole of %h, on each device, although this would take no communication. No other %z is
// left, which such a sum would take.

device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK:      func.func @main
// CHECK-NEXT: %h = onnx.Relu(%x)
// CHECK-NEXT: %[[X:.*]] = dist.reshard %h
// CHECK-NEXT: %s = train.square_sum %[[X]]
// CHECK-NEXT: %z = onnx.Constant()
// CHECK-NEXT: %y = onnx.Sum(%s, %z)
// CHECK-NEXT: %[[Y:.*]] = dist.reshard %y
// CHECK-NEXT: func.return %[[Y]]
func.func @main(%x: tensor<8xf32> {dist.layout = #dist.layout<@mesh>}) -> tensor<f32> {
  %h = onnx.Relu(%x) {dist.operand_layouts = [#dist.layout<@mesh>], dist.result_layouts = [#dist.layout<@mesh>]} : (tensor<8xf32>) -> tensor<8xf32>
  %s = train.square_sum %h {dist.operand_layouts = [#dist.layout<@mesh, [{d}]>], dist.result_layouts = [#dist.layout<@mesh, partial sum {d}>]} : (tensor<8xf32>) -> tensor<f32>
  %z = onnx.Constant() {value = dense<0.0> : tensor<f32>, dist.operand_layouts = [], dist.result_layouts = [#dist.layout<@mesh, partial sum {d}>]} : () -> tensor<f32>
  %y = onnx.Sum(%s, %z) {dist.operand_layouts = [#dist.layout<@mesh, partial sum {d}>, #dist.layout<@mesh, partial sum {d}>], dist.result_layouts = [#dist.layout<@mesh, partial sum {d}>]} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  func.return {dist.operand_layouts = [#dist.layout<@mesh>], dist.result_layouts = []} %y : tensor<f32>
}
