// RUN: distir-opt %s -p "project{rank=0}" | filecheck %s --check-prefix SENDS
// RUN: distir-opt %s -p "project{rank=2}" | filecheck %s --check-prefix ALL
// RUN: distir-opt %s -p "project{rank=4}" | filecheck %s --check-prefix COLUMNS

// A send from rows on two devices to one device, to columns on two, and of two terms to
// one device: each device gets what its layout says from those that have it.

device.mesh @rows on @box <d = 2> [0 to 2]
device.mesh @one on @box <> [2]
device.mesh @columns on @box <t = 2> [3 to 5]
#R = #dist.layout<@rows, [{d}, {}]>
#O = #dist.layout<@one>
#C = #dist.layout<@columns, [{}, {t}]>

func.func @main(%x: tensor<8x4xf32, #R>) -> (tensor<8x4xf32, #O>, tensor<8x4xf32, #C>, tensor<f32, #O>) {
  %y = dist.send %x {dist.asynchronous} : tensor<8x4xf32, #R> -> tensor<8x4xf32, #O>
  %z = dist.send %x : tensor<8x4xf32, #R> -> tensor<8x4xf32, #C>
  %u = onnx.ReduceSum(%x) {keepdims = 0 : i64} : (tensor<8x4xf32, #R>) -> tensor<f32, #dist.layout<@rows, partial sum {d}>>
  %v = dist.send %u : tensor<f32, #dist.layout<@rows, partial sum {d}>> -> tensor<f32, #O>
  func.return %y, %z, %v : tensor<8x4xf32, #O>, tensor<8x4xf32, #C>, tensor<f32, #O>
}

// SENDS:      collective.send %x to 2 {dist.asynchronous} : tensor<4x4xf32>
// SENDS:      %[[LEFT:.*]] = onnx.Slice(%x, {{.*}}) : ({{.*}}) -> tensor<4x2xf32>
// SENDS-NEXT: collective.send %[[LEFT]] to 3 : tensor<4x2xf32>
// SENDS:      %[[RIGHT:.*]] = onnx.Slice(%x, {{.*}}) : ({{.*}}) -> tensor<4x2xf32>
// SENDS-NEXT: collective.send %[[RIGHT]] to 4 : tensor<4x2xf32>
// SENDS:      collective.send %u to 2 : tensor<f32>

// What is under way is waited for, and put together, where it is used.
// ALL:      %arriving = collective.recv from 0 {dist.asynchronous} : tensor<4x4xf32>
// ALL-NEXT: %arriving_1 = collective.recv from 1 {dist.asynchronous} : tensor<4x4xf32>
// ALL-NEXT: %v = collective.recv from 0 : tensor<f32>
// ALL-NEXT: %v_1 = collective.recv from 1 : tensor<f32>
// ALL-NEXT: %v_2 = onnx.Add(%v, %v_1)
// ALL-NEXT: %piece = collective.wait %arriving : tensor<4x4xf32>
// ALL-NEXT: %piece_1 = collective.wait %arriving_1 : tensor<4x4xf32>
// ALL-NEXT: %y = onnx.Concat(%piece, %piece_1) {axis = 0 : i64}
// ALL-NEXT: func.return %y, %v_2

// Device 4 is sent to by device 1 first, while device 0 sends to device 3.
// COLUMNS:      %z = collective.recv from 1 : tensor<4x2xf32>
// COLUMNS-NEXT: %z_1 = collective.recv from 0 : tensor<4x2xf32>
// COLUMNS-NEXT: %z_2 = onnx.Concat(%z_1, %z) {axis = 0 : i64}
