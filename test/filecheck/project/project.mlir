// RUN: distir-opt %s -p "project{rank=1}" | filecheck %s
// RUN: distir-opt %s -p "project" | filecheck %s --check-prefix ZERO
// RUN: distir-opt %s -p "project{rank=2}" | filecheck %s --check-prefix TWO

// Tensor parallelism on devices 0 and 1; the result goes on to device 2.

device.mesh @pair on @box <t = 2> [0 to 2]
device.mesh @first on @box <> [0]
device.mesh @last on @box <> [2]

// The function lives on @pair; device 2 has no part in it.
func.func @block(%x: tensor<4x8xf32, #dist.layout<@pair>>, %w1: tensor<8x16xf32, #dist.layout<@pair, [{}, {t}]>>, %w2: tensor<16x8xf32, #dist.layout<@pair, [{t}, {}]>>) -> tensor<4x8xf32, #dist.layout<@pair>> {
  %h = onnx.MatMul(%x, %w1) {scope = "fc1"} : (tensor<4x8xf32, #dist.layout<@pair>>, tensor<8x16xf32, #dist.layout<@pair, [{}, {t}]>>) -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t}]>>
  %p = onnx.MatMul(%h, %w2) {scope = "fc2"} : (tensor<4x16xf32, #dist.layout<@pair, [{}, {t}]>>, tensor<16x8xf32, #dist.layout<@pair, [{t}, {}]>>) -> tensor<4x8xf32, #dist.layout<@pair, partial sum {t}>>
  %y = collective.all_reduce %p over [t] {scope = "fc2"} : tensor<4x8xf32, #dist.layout<@pair, partial sum {t}>> -> tensor<4x8xf32, #dist.layout<@pair>>
  func.return %y : tensor<4x8xf32, #dist.layout<@pair>>
}

func.func @main(%x: tensor<4x8xf32, #dist.layout<@pair>> {dist.role = "input", dist.name = "x"}, %w1: tensor<8x16xf32, #dist.layout<@pair, [{}, {t}]>> {dist.name = "fc1"}, %w2: tensor<16x8xf32, #dist.layout<@pair, [{t}, {}]>> {dist.name = "fc2"}, %bias: tensor<8xf32, #dist.layout<@last>> {dist.name = "bias"}) -> (tensor<4x8xf32, #dist.layout<@last>> {dist.name = "y"}) {
  %a = func.call @block(%x, %w1, %w2) : (tensor<4x8xf32, #dist.layout<@pair>>, tensor<8x16xf32, #dist.layout<@pair, [{}, {t}]>>, tensor<16x8xf32, #dist.layout<@pair, [{t}, {}]>>) -> tensor<4x8xf32, #dist.layout<@pair>>
  %g = collective.all_gather %w1 over [t] : tensor<8x16xf32, #dist.layout<@pair, [{}, {t}]>> -> tensor<8x16xf32, #dist.layout<@pair>>
  %s = collective.slice %a over [t] : tensor<4x8xf32, #dist.layout<@pair>> -> tensor<4x8xf32, #dist.layout<@pair, [{}, {t:2}]>>
  %m = collective.all_to_all %s over [t] : tensor<4x8xf32, #dist.layout<@pair, [{}, {t:2}]>> -> tensor<4x8xf32, #dist.layout<@pair, [{t}, {}]>>
  %r = collective.gather %m over [t] : tensor<4x8xf32, #dist.layout<@pair, [{t}, {}]>> -> tensor<4x8xf32, #dist.layout<@first>>
  %b = dist.send %r : tensor<4x8xf32, #dist.layout<@first>> -> tensor<4x8xf32, #dist.layout<@last>>
  %y = onnx.Add(%b, %bias) : (tensor<4x8xf32, #dist.layout<@last>>, tensor<8xf32, #dist.layout<@last>>) -> tensor<4x8xf32, #dist.layout<@last>>
  func.return %y : tensor<4x8xf32, #dist.layout<@last>>
}

// CHECK:       device.mesh @pair on @box <t = 2> [0 to 2]
// CHECK:       func.func @block(%x: tensor<4x8xf32> {dist.layout = #dist.layout<@pair>}, %w1: tensor<8x8xf32> {dist.layout = #dist.layout<@pair, [{}, {t}]>}, %w2: tensor<8x8xf32> {dist.layout = #dist.layout<@pair, [{t}, {}]>}) -> (tensor<4x8xf32> {dist.layout = #dist.layout<@pair>}) {
// CHECK-NEXT:    %h = onnx.MatMul(%x, %w1) {scope = "fc1"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %p = onnx.MatMul(%h, %w2) {scope = "fc2"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %y = collective.rank.all_reduce %p over [t] {scope = "fc2", mesh = @pair, group = array<i64: 0, 1>, reduction = "sum"} : tensor<4x8xf32> -> tensor<4x8xf32>
// CHECK-NEXT:    func.return %y : tensor<4x8xf32>
// CHECK:       func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x", dist.layout = #dist.layout<@pair>},
// CHECK-SAME:    %w2: tensor<8x8xf32> {dist.name = "fc2", dist.layout = #dist.layout<@pair, [{t}, {}]>}) {
// CHECK-NEXT:    %a = func.call @block(%x, %w1, %w2) : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:    %g = collective.rank.all_gather %w1 over [t] {mesh = @pair, group = array<i64: 0, 1>, dim = 1 : i64} : tensor<8x8xf32> -> tensor<8x16xf32>
// CHECK-NEXT:    %s = collective.rank.slice %a over [t] {mesh = @pair, group = array<i64: 0, 1>, dim = 1 : i64, run = 2 : i64} : tensor<4x8xf32> -> tensor<4x4xf32>
// CHECK-NEXT:    %m = collective.rank.all_to_all %s over [t] {mesh = @pair, group = array<i64: 0, 1>, dim = 1 : i64, run = 2 : i64, split_dim = 0 : i64} : tensor<4x4xf32> -> tensor<2x8xf32>
// CHECK-NEXT:    %r = collective.rank.gather %m over [t] {mesh = @pair, group = array<i64: 0, 1>, dim = 0 : i64, root = 0 : i64} : tensor<2x8xf32> -> tensor<4x8xf32>
// CHECK-NEXT:    func.return
// CHECK-NEXT:  }

// ZERO:        %r = collective.rank.gather
// ZERO-NEXT:   collective.send %r to 2 : tensor<4x8xf32>
// ZERO-NEXT:   func.return

// TWO-NOT:     @block
// TWO:         func.func @main(%bias: tensor<8xf32> {dist.name = "bias", dist.layout = #dist.layout<@last>}) -> (tensor<4x8xf32> {dist.name = "y", dist.layout = #dist.layout<@last>}) {
// TWO-NEXT:      %b = collective.recv from 0 : tensor<4x8xf32>
// TWO-NEXT:      %y = onnx.Add(%b, %bias) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
// TWO-NEXT:      func.return %y : tensor<4x8xf32>
