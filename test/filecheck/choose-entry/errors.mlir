// RUN: not distir-opt %s -p "choose-entry{entry=train}" 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: not distir-opt %s -p convert-floats 2>&1 | filecheck %s --check-prefix SEVERAL
// RUN: distir-opt %s -p "choose-entry{entry=decode}" | not distir-opt -p "choose-entry{entry=decode}" 2>&1 | filecheck %s --check-prefix ONE

// UNKNOWN: error: the program has no entry 'train'; it has prefill and decode
// SEVERAL: error: the program has the entries prefill and decode; choose one, with --entry decode or the pass choose-entry{entry=decode}
// ONE: error: the module has no public function 'decode'; it has main

func.func @prefill(%x: tensor<2x3x4xf32> {dist.role = "input", dist.name = "x", dist.feeds = "tokens"}, %w: tensor<4x8xf32> {dist.role = "parameter", dist.name = "w"}, %c: tensor<2x6x8xf32> {dist.role = "cache", dist.name = "c"}, %at: tensor<2xi64> {dist.role = "input", dist.name = "padding", dist.feeds = "padding"}) -> (tensor<2x3x8xf32> {dist.name = "y"}, tensor<2x6x8xf32> {dist.name = "c", dist.updates = "c"}) attributes {dist.entry = "prefill"} {
  %h = onnx.MatMul(%x, %w) : (tensor<2x3x4xf32>, tensor<4x8xf32>) -> tensor<2x3x8xf32>
  %n = onnx.TensorScatter(%c, %h, %at) {axis = -2 : i64, mode = "circular"} : (tensor<2x6x8xf32>, tensor<2x3x8xf32>, tensor<2xi64>) -> tensor<2x6x8xf32>
  func.return %h, %n : tensor<2x3x8xf32>, tensor<2x6x8xf32>
}
func.func @decode(%x: tensor<2x1x4xf32> {dist.role = "input", dist.name = "x", dist.feeds = "tokens"}, %w: tensor<4x8xf32> {dist.role = "parameter", dist.name = "w"}, %c: tensor<2x6x8xf32> {dist.role = "cache", dist.name = "c"}, %at: tensor<2xi64> {dist.role = "input", dist.name = "positions", dist.feeds = "positions", dist.limit = 6 : i64}, %v: tensor<8x4xf32> {dist.role = "parameter", dist.name = "v"}) -> (tensor<2x6x4xf32> {dist.name = "y"}, tensor<2x6x8xf32> {dist.name = "c", dist.updates = "c"}) attributes {dist.entry = "decode"} {
  %h = func.call @project(%x, %w) : (tensor<2x1x4xf32>, tensor<4x8xf32>) -> tensor<2x1x8xf32>
  %n = onnx.TensorScatter(%c, %h, %at) {axis = -2 : i64, mode = "circular"} : (tensor<2x6x8xf32>, tensor<2x1x8xf32>, tensor<2xi64>) -> tensor<2x6x8xf32>
  %a = onnx.Relu(%n) : (tensor<2x6x8xf32>) -> tensor<2x6x8xf32>
  %y = onnx.MatMul(%a, %v) : (tensor<2x6x8xf32>, tensor<8x4xf32>) -> tensor<2x6x4xf32>
  func.return %y, %n : tensor<2x6x4xf32>, tensor<2x6x8xf32>
}
func.func private @project(%x: tensor<2x1x4xf32>, %w: tensor<4x8xf32>) -> tensor<2x1x8xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<2x1x4xf32>, tensor<4x8xf32>) -> tensor<2x1x8xf32>
  func.return %h : tensor<2x1x8xf32>
}
