// RUN: distir-opt %s -t torch | filecheck %s
// RUN: rm -rf %t && distir lower %s -o %t && filecheck %s --check-prefix TABLES --input-file %t/tables.py
// RUN: distir-opt %s -p "project{rank=2}" -t torch | filecheck %s --check-prefix ONE

// Two ranks share a class; the third one has its own.

device.mesh @pair on @box <t = 2> [0 to 2]
device.mesh @first on @box <> [0]
device.mesh @last on @box <> [2]

func.func @layer(%x: tensor<4x8xf32, #dist.layout<@pair>>, %w: tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>>) -> tensor<4x16xf32, #dist.layout<@pair>> {
  %h = onnx.MatMul(%x, %w) {scope = "layer.fc"} : (tensor<4x8xf32, #dist.layout<@pair>>, tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>>) -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32, #dist.layout<@pair>>
  %m = onnx.Mul(%h, %half) {scope = "layer.scale"} : (tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>>, tensor<f32, #dist.layout<@pair>>) -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>>
  %y = collective.all_gather %m over [t] : tensor<4x16xf32, #dist.layout<@pair, [{}, {t:2}]>> -> tensor<4x16xf32, #dist.layout<@pair>>
  func.return %y : tensor<4x16xf32, #dist.layout<@pair>>
}

func.func @main(%x: tensor<4x8xf32, #dist.layout<@pair>> {dist.role = "input", dist.name = "x"}, %w: tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>> {dist.role = "parameter", dist.name = "fc.weight"}, %b: tensor<16xf32, #dist.layout<@last>> {dist.role = "parameter", dist.name = "bias"}) -> (tensor<4x16xf32, #dist.layout<@last>> {dist.name = "y"}) {
  %a = func.call @layer(%x, %w) : (tensor<4x8xf32, #dist.layout<@pair>>, tensor<8x16xf32, #dist.layout<@pair, [{}, {t:2}]>>) -> tensor<4x16xf32, #dist.layout<@pair>>
  %r = collective.slice %a over [t] : tensor<4x16xf32, #dist.layout<@pair>> -> tensor<4x16xf32, #dist.layout<@pair, [{}, {t}]>>
  %g = collective.gather %r over [t] : tensor<4x16xf32, #dist.layout<@pair, [{}, {t}]>> -> tensor<4x16xf32, #dist.layout<@first>>
  %s = dist.send %g : tensor<4x16xf32, #dist.layout<@first>> -> tensor<4x16xf32, #dist.layout<@last>>
  %c = onnx.Constant() {value = dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]> : tensor<16xf32>} : () -> tensor<16xf32, #dist.layout<@last>>
  %t = onnx.Add(%s, %b) : (tensor<4x16xf32, #dist.layout<@last>>, tensor<16xf32, #dist.layout<@last>>) -> tensor<4x16xf32, #dist.layout<@last>>
  %y = onnx.Sub(%t, %c) {scope = "head\nimport os"} : (tensor<4x16xf32, #dist.layout<@last>>, tensor<16xf32, #dist.layout<@last>>) -> tensor<4x16xf32, #dist.layout<@last>>
  func.return %y : tensor<4x16xf32, #dist.layout<@last>>
}

// TABLES:       MESHES = {
// TABLES-NEXT:      'pair': MeshSpec({'t': 2}, [0, 1], [('t',)]),
// TABLES-NEXT:      'first': MeshSpec({}, [0], []),
// TABLES-NEXT:      'last': MeshSpec({}, [2], []),
// TABLES-NEXT:  }
// TABLES:       ARGUMENTS = (
// TABLES-NEXT:      Tensor('x', torch.float32, (4, 8), mesh='pair', role='input'),
// TABLES-NEXT:      Tensor('fc.weight', torch.float32, (8, 16), mesh='pair', split=((), (('t', 2),)), role='parameter'),
// TABLES-NEXT:      Tensor('bias', torch.float32, (16,), mesh='last', role='parameter'),
// TABLES-NEXT:  )
// TABLES:       RESULTS = (
// TABLES-NEXT:      Tensor('y', torch.float32, (4, 16), mesh='last'),
// TABLES-NEXT:  )
// TABLES:       PLACES = {
// TABLES-NEXT:      'Program0': Places((0, 1), (), members={1: 'fc.weight'}),
// TABLES-NEXT:      'Program1': Places((0, 1), (), members={1: 'fc.weight'}),
// TABLES-NEXT:      'Program2': Places((2,), (0,), members={0: 'bias'}),
// TABLES-NEXT:  }

// CHECK:       import torch
// CHECK:       from . import collectives, modules
// CHECK:       from .tables import ARGUMENTS, MESHES, PLACES, RESULTS

// The send to rank 2 is rank 0's alone: the ranks of the pair differ.

// CHECK:       class Program0(modules.RankModule):
// CHECK-NEXT:      """Rank 0."""
// CHECK:           places = PLACES['Program0']
// CHECK:           def __init__(self, meshes, numbers):
// CHECK-NEXT:          super().__init__()
// CHECK-NEXT:          self.pair = meshes['pair']
// CHECK-NEXT:          self.numbers = numbers
// CHECK-NEXT:          modules.add_parameters(self, 'fc.weight')
// CHECK:           def forward(self, x):
// CHECK-NEXT:          a = self.layer(x)
// CHECK-NEXT:          r = collectives.keep_shard(a, self.pair.group('t'), dim=1)
// CHECK-NEXT:          del a
// CHECK-NEXT:          g = collectives.gather(r, self.pair.group('t'), dim=1, root=self.numbers[0])
// CHECK-NEXT:          del r
// CHECK-NEXT:          collectives.send(g, self.numbers[1])
// CHECK-NEXT:          del g
// CHECK-NEXT:          return
// CHECK:           def layer(self, x):
// CHECK-NEXT:          # layer.fc
// CHECK-NEXT:          h = x @ self.fc.weight
// CHECK-NEXT:          del x
// CHECK-NEXT:          # layer.scale
// CHECK-NEXT:          m = h * 0.5
// CHECK-NEXT:          del h
// CHECK-NEXT:          y = collectives.all_gather(m, self.pair.group('t'), dim=1, run=2)
// CHECK-NEXT:          del m
// CHECK-NEXT:          return y
// CHECK:       class Program1(modules.RankModule):
// CHECK-NEXT:      """Rank 1, mesh pair."""
// CHECK:       class Program2(modules.RankModule):
// CHECK-NEXT:      """Rank 2, mesh last."""
// CHECK:           def forward(self):
// CHECK-NEXT:          s = collectives.recv((4, 16), torch.float32, self.numbers[0])
// CHECK-NEXT:          t = s.add_(self.bias)
// CHECK-NEXT:          del s
// CHECK-NEXT:          # head?import os
// CHECK-NEXT:          y = t - self.c
// CHECK:       RANKS = (
// CHECK-NEXT:      Rank(Program0, numbers=(0, 2)),
// CHECK-NEXT:      Rank(Program1, numbers=(0,)),
// CHECK-NEXT:      Rank(Program2, numbers=(0,)),
// CHECK-NEXT:  )

// ONE:         class Program0(modules.RankModule):
// ONE:             self.c = torch.tensor(
// ONE-NEXT:            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0],
// ONE-NEXT:            dtype=torch.float32,
// ONE:             s = collectives.recv((4, 16), torch.float32, self.numbers[0])
// ONE-NOT:     class
