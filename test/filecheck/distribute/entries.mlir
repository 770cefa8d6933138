// RUN: distir-opt %s -p 'distribute{t=2 cluster=cpu shard="w:1=t","c:2=t","v:0=t"}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{t=2 cluster=cpu shard="w:1=t","c:2=t","v:0=t"},choose-entry{entry=decode},verify-distribution' | filecheck %s --check-prefix DECODE
// RUN: distir-opt %s -p 'distribute{t=2 cluster=cpu shard="w:1=t","c:2=t","v:0=t"},choose-entry{entry=decode},project{rank=1},reuse-operands' | filecheck %s --check-prefix RANK
// RUN: not distir-opt %s -p "distribute{p=2 cluster=cpu stage_meshes=search}" 2>&1 | filecheck %s --check-prefix SEARCH

// Entries share parameters and caches, and have them in one layout, which the last entry chooses.

// CHECK:      func.func @prefill(
// CHECK-SAME: %w: tensor<4x8xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK-SAME: %c: tensor<2x6x8xf32, #dist.layout<@mesh, [{}, {}, {t}]>>
// CHECK-SAME: attributes {dist.entry = "prefill"}
// CHECK:      func.func @decode(
// CHECK-SAME: %w: tensor<4x8xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK-SAME: %c: tensor<2x6x8xf32, #dist.layout<@mesh, [{}, {}, {t}]>>
// CHECK-SAME: attributes {dist.entry = "decode"}

// DECODE: func.func @main

// A rank writes its part of the new token into its part of the cache.

// RANK: %c: tensor<2x6x4xf32>
// RANK: onnx.TensorScatter(%c, {{.*}}torch.in_place

// SEARCH: error: distribute: the entries of a program share the meshes of its stages, which stage_meshes=search finds for one entry only; give the meshes

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
