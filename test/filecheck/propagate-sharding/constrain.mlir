// RUN: distir-opt %s -p "propagate-sharding" --split-input-file | filecheck %s
// RUN: distir-opt %s -p "propagate-sharding,partition" --split-input-file | filecheck %s --check-prefix=PARTITION

// Layouts spread from one annotated argument through elementwise ops and calls.

device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK-LABEL: func.func @main
// CHECK:       func.call @twice(%x) {dist.operand_layouts = [#dist.layout<@mesh, [{d}, {}]>], dist.result_layouts = [#dist.layout<@mesh, [{d}, {}]>]}
// CHECK-LABEL: func.func @twice(%a: tensor<4x2xf32> {dist.layout = #dist.layout<@mesh, [{d}, {}]>})
// CHECK:       onnx.Add(%a, %a) {dist.operand_layouts = [#dist.layout<@mesh, [{d}, {}]>, #dist.layout<@mesh, [{d}, {}]>], dist.result_layouts = [#dist.layout<@mesh, [{d}, {}]>]}
func.func @main(%x: tensor<4x2xf32> {dist.layout = #dist.layout<@mesh, [{d}, {}]>}) -> tensor<4x2xf32> {
  %y = func.call @twice(%x) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}
func.func @twice(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %b = onnx.Add(%a, %a) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %b : tensor<4x2xf32>
}

// -----

// A function that is called with two layouts becomes two functions.

device.mesh @mesh on @box <d = 2> [0 to 2]

// PARTITION: func.call @twice(%x) : (tensor<4x2xf32, #dist.layout<@mesh, [{d}, {}]>>)
// PARTITION: func.call @twice_1(%w) : (tensor<4x2xf32, #dist.layout<@mesh>>)
// PARTITION-DAG: func.func @twice(%a: tensor<4x2xf32, #dist.layout<@mesh, [{d}, {}]>>)
// PARTITION-DAG: func.func @twice_1(%a: tensor<4x2xf32, #dist.layout<@mesh>>)
func.func @main(%x: tensor<4x2xf32> {dist.layout = #dist.layout<@mesh, [{d}, {}]>}, %w: tensor<4x2xf32> {dist.role = "parameter"}) -> (tensor<4x2xf32>, tensor<4x2xf32>) {
  %y = func.call @twice(%x) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %z = func.call @twice(%w) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %y, %z : tensor<4x2xf32>, tensor<4x2xf32>
}
func.func @twice(%a: tensor<4x2xf32>) -> tensor<4x2xf32> {
  %b = onnx.Add(%a, %a) : (tensor<4x2xf32>, tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %b : tensor<4x2xf32>
}

// -----

// A constraint in the middle of a program costs the communication it needs.

device.mesh @mesh on @box <d = 2> [0 to 2]

// PARTITION: %[[MOVED:.*]] = collective.all_to_all %a over [d] : tensor<4x2xf32, #dist.layout<@mesh, [{d}, {}]>> -> tensor<4x2xf32, #dist.layout<@mesh, [{}, {d}]>>
// PARTITION: onnx.Neg(%[[MOVED]])
func.func @main(%x: tensor<4x2xf32> {dist.layout = #dist.layout<@mesh, [{d}, {}]>}) -> tensor<4x2xf32> {
  %a = onnx.Relu(%x) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  %c = dist.constrain %a to <@mesh, [{}, {d}]> : tensor<4x2xf32> -> tensor<4x2xf32>
  %y = onnx.Neg(%c) : (tensor<4x2xf32>) -> tensor<4x2xf32>
  func.return %y : tensor<4x2xf32>
}
