// RUN: distir-opt %s -t torch | filecheck %s
// RUN: distir-opt %s -p "project{rank=2}" -t torch | filecheck %s --check-prefix ONE

// Two ranks share a class; the third one has its own.

device.mesh @pair on @box <"t" = 2> [0 to 2]
device.mesh @first on @box <> [0]
device.mesh @last on @box <> [2]

func.func @layer(%x: tensor<4x8xf32, #dist.layout<@pair>>, %w: tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>>) -> tensor<4x16xf32, #dist.layout<@pair>> {
  %h = onnx.MatMul(%x, %w) {scope = "layer.fc"} : (tensor<4x8xf32, #dist.layout<@pair>>, tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>>) -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32, #dist.layout<@pair>>
  %m = onnx.Mul(%h, %half) {scope = "layer.scale"} : (tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>>, tensor<f32, #dist.layout<@pair>>) -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>>
  %y = collective.all_gather %m over ["t"] : tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>> -> tensor<4x16xf32, #dist.layout<@pair>>
  func.return %y : tensor<4x16xf32, #dist.layout<@pair>>
}

func.func @main(%x: tensor<4x8xf32, #dist.layout<@pair>> {dist.role = "input", dist.name = "x"}, %w: tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>> {dist.role = "parameter", dist.name = "fc.weight"}, %b: tensor<16xf32, #dist.layout<@last>> {dist.role = "parameter", dist.name = "bias"}) -> (tensor<4x16xf32, #dist.layout<@last>> {dist.name = "y"}) {
  %a = func.call @layer(%x, %w) : (tensor<4x8xf32, #dist.layout<@pair>>, tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>>) -> tensor<4x16xf32, #dist.layout<@pair>>
  %r = collective.slice %a over ["t"] : tensor<4x16xf32, #dist.layout<@pair>> -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t}]>>
  %g = collective.gather %r over ["t"] : tensor<4x16xf32, #dist.layout<@pair, [{}, {t}]>> -> tensor<4x16xf32, #dist.layout<@first>>
  %s = dist.send %g : tensor<4x16xf32, #dist.layout<@first>> -> tensor<4x16xf32, #dist.layout<@last>>
  %c = onnx.Constant() {value = dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]> : tensor<16xf32>} : () -> tensor<16xf32, #dist.layout<@last>>
  %t = onnx.Add(%s, %b) : (tensor<4x16xf32, #dist.layout<@last>>, tensor<16xf32, #dist.layout<@last>>) -> tensor<4x16xf32, #dist.layout<@last>>
  %y = onnx.Sub(%t, %c) {scope = "head\nimport os"} : (tensor<4x16xf32, #dist.layout<@last>>, tensor<16xf32, #dist.layout<@last>>) -> tensor<4x16xf32, #dist.layout<@last>>
  func.return %y : tensor<4x16xf32, #dist.layout<@last>>
}

// CHECK:       import torch
// CHECK:       from . import collectives
// CHECK:       MESHES = {
// CHECK-NEXT:      'pair': MeshSpec({'t': 2}, [0, 1], [('t',)]),
// CHECK-NEXT:      'first': MeshSpec({}, [0], []),
// CHECK-NEXT:      'last': MeshSpec({}, [2], []),
// CHECK-NEXT:  }
// CHECK:       ARGUMENTS = (
// CHECK-NEXT:      Tensor('x', torch.float32, (4, 8), mesh='pair', role='input'),
// CHECK-NEXT:      Tensor('fc.weight', torch.float32, (8, 16), mesh='pair', split=((), (('t', 2),)), role='parameter'),
// CHECK-NEXT:      Tensor('bias', torch.float32, (16,), mesh='last', role='parameter'),
// CHECK-NEXT:  )
// CHECK:       RESULTS = (
// CHECK-NEXT:      Tensor('y', torch.float32, (4, 16), mesh='last'),
// CHECK-NEXT:  )

// The send to rank 2 is rank 0's alone: the ranks of the pair differ.

// CHECK:       class Program0:
// CHECK-NEXT:      """Rank 0."""
// CHECK:           arguments = (0, 1)
// CHECK-NEXT:      results = ()
// CHECK:           def __init__(self, meshes, numbers):
// CHECK-NEXT:          self.pair = meshes['pair']
// CHECK-NEXT:          self.numbers = numbers
// CHECK:           def main(self, x, fc_weight):
// CHECK-NEXT:          a = self.layer(x, fc_weight)
// CHECK-NEXT:          r = collectives.keep_shard(a, self.pair.group('t'), dim=1)
// CHECK-NEXT:          del a
// CHECK-NEXT:          g = collectives.gather(r, self.pair.group('t'), dim=1, root=self.numbers[0])
// CHECK-NEXT:          del r
// CHECK-NEXT:          collectives.send(g, self.numbers[1])
// CHECK-NEXT:          del g
// CHECK-NEXT:          return
// CHECK:           def layer(self, x, w):
// CHECK-NEXT:          # layer.fc
// CHECK-NEXT:          h = x @ w
// CHECK-NEXT:          # layer.scale
// CHECK-NEXT:          m = h * 0.5
// CHECK-NEXT:          del h
// CHECK-NEXT:          y = collectives.all_gather(m, self.pair.group('t'), dim=1, run=2)
// CHECK-NEXT:          del m
// CHECK-NEXT:          return y
// CHECK:       class Program1:
// CHECK-NEXT:      """Rank 1, mesh pair."""
// CHECK:       class Program2:
// CHECK-NEXT:      """Rank 2, mesh last."""
// CHECK:           def main(self, bias):
// CHECK-NEXT:          s = collectives.recv((4, 16), torch.float32, self.numbers[0])
// CHECK-NEXT:          t = s + bias
// CHECK-NEXT:          del s
// CHECK-NEXT:          # head?import os
// CHECK-NEXT:          y = t - self.c
// CHECK:       RANKS = (
// CHECK-NEXT:      Rank(Program0, numbers=(0, 2)),
// CHECK-NEXT:      Rank(Program1, numbers=(0,)),
// CHECK-NEXT:      Rank(Program2, numbers=(0,)),
// CHECK-NEXT:  )

// ONE:         class Program0:
// ONE:             self.c = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0], dtype=torch.float32)
// ONE:             s = collectives.recv((4, 16), torch.float32, self.numbers[0])
// ONE-NOT:     class
