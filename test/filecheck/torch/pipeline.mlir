// RUN: distir-opt %s -p "distribute{p=2 k=2}" -t torch | filecheck %s
// RUN: distir-opt %s -p "distribute{p=2 k=2 blocking_sends=true}" -t torch | filecheck %s --check-prefix BLOCKING

// A pipeline of two stages and two micro-batches: a class per stage, a method per stage
// and phase, and `forward`, which calls it for each micro-batch.

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<32x16xf32> {dist.role = "parameter", dist.name = "w2"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %h = onnx.MatMul(%x, %w1) {scope = "fc1"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) {scope = "fc1"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%a, %w2) {scope = "fc2"} : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}

// CHECK:       class Program0(modules.RankModule):
// CHECK-NEXT:      """Rank 0, mesh stage0."""
// CHECK:           def __init__(self, meshes, numbers):
// CHECK-NEXT:          super().__init__()
// CHECK-NEXT:          self.numbers = numbers
// CHECK-NEXT:          modules.add_parameters(self, 'w1')
// CHECK:           def forward(self, x):
// CHECK-NEXT:          x_2, x_3 = x.split([4, 4], 0)
// CHECK-NEXT:          given = [x_2]
// CHECK-NEXT:          del x_2
// CHECK-NEXT:          a = self.stage0_forward(given.pop(0))
// CHECK-NEXT:          collectives.start_send(a, self.numbers[0])
// CHECK-NEXT:          del a
// CHECK-NEXT:          given_2 = [x_3]
// CHECK-NEXT:          del x_3
// CHECK-NEXT:          a_2 = self.stage0_forward(given_2.pop(0))
// CHECK-NEXT:          collectives.start_send(a_2, self.numbers[0])
// CHECK-NEXT:          del a_2
// CHECK-NEXT:          return
// CHECK:           def stage0_forward(self, x):
// CHECK-NEXT:          # fc1
// CHECK-NEXT:          h = x @ self.w1
// CHECK-NEXT:          del x
// CHECK-NEXT:          a = F.relu(h)
// CHECK-NEXT:          del h
// CHECK-NEXT:          return a
// CHECK:       class Program1(modules.RankModule):
// CHECK-NEXT:      """Rank 1, mesh stage1."""
// CHECK:           def __init__(self, meshes, numbers):
// CHECK-NEXT:          super().__init__()
// CHECK-NEXT:          self.numbers = numbers
// CHECK-NEXT:          modules.add_parameters(self, 'w2')
// CHECK:           def forward(self):
// CHECK-NEXT:          arriving = collectives.start_recv((4, 32), torch.float32, self.numbers[0])
// CHECK-NEXT:          arriving_2 = collectives.start_recv((4, 32), torch.float32, self.numbers[0])
// CHECK-NEXT:          a = collectives.wait(arriving)
// CHECK-NEXT:          del arriving
// CHECK-NEXT:          y = self.stage1_forward(a)
// CHECK-NEXT:          del a
// CHECK-NEXT:          a_2 = collectives.wait(arriving_2)
// CHECK-NEXT:          del arriving_2
// CHECK-NEXT:          y_2 = self.stage1_forward(a_2)
// CHECK-NEXT:          del a_2
// CHECK-NEXT:          y_3 = torch.cat((y, y_2,), 0)
// CHECK-NEXT:          del y, y_2
// CHECK-NEXT:          return y_3
// CHECK:           def stage1_forward(self, a):
// CHECK-NEXT:          # fc2
// CHECK-NEXT:          y = a @ self.w2
// CHECK-NEXT:          return y
// CHECK:       RANKS = (
// CHECK-NEXT:      Rank(Program0, numbers=(1,)),
// CHECK-NEXT:      Rank(Program1, numbers=(0,)),
// CHECK-NEXT:  )

// Sends that block take the place of those that start and wait.

// BLOCKING:      a = self.stage0_forward(given.pop(0))
// BLOCKING:      collectives.send(a, self.numbers[0])
// BLOCKING:      a = collectives.recv((4, 32), torch.float32, self.numbers[0])
// BLOCKING-NEXT: y = self.stage1_forward(a)
