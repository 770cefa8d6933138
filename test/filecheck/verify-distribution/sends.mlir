// RUN: distir-opt %s -p verify-distribution | filecheck %s
// RUN: sed -e 's/<@B, \[{d}, {}\]>/<@B>/' %s | not distir-opt -p verify-distribution 2>&1 | filecheck %s --check-prefix=LAYOUT
// RUN: sed -e 's/partial sum/partial max/g; s/ReduceSum/ReduceMax/' %s | not distir-opt -p verify-distribution 2>&1 | filecheck %s --check-prefix=TERMS

device.mesh @A on @box <d = 2> [0 to 2]
device.mesh @B on @box <d = 2> [2 to 4]
device.mesh @C on @box <t = 4> [4 to 8]

// To a mesh of another shape a send may change the layout, and deal out the terms of a sum.
// CHECK: %y = dist.send %x
// CHECK-NEXT: %z = dist.send %x : tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@C, [{}, {t}]>>
// CHECK: %v = dist.send %u : tensor<f32, #dist.layout<@A, partial sum {d}>> -> tensor<f32, #dist.layout<@C, partial sum {t}>>

// LAYOUT: error: @main: dist.send %y: a send between meshes with the same axes keeps the layout: expected <@B, [{d}, {}]>, got <@B>
// TERMS: error: @main: dist.send %v: a send cannot make the terms of <@C, partial max {t}> of those of <@A, partial max {d}>; reduce the value before it is sent
func.func @main(%x: tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>>) {
  %y = dist.send %x : tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@B, [{d}, {}]>>
  %z = dist.send %x : tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@C, [{}, {t}]>>
  %u = onnx.ReduceSum(%x) {keepdims = 0 : i64} : (tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>>) -> tensor<f32, #dist.layout<@A, partial sum {d}>>
  %v = dist.send %u : tensor<f32, #dist.layout<@A, partial sum {d}>> -> tensor<f32, #dist.layout<@C, partial sum {t}>>
  func.return
}
