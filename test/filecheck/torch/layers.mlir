// RUN: distir-opt %s -p "outline-repeats,differentiate{loss=mse optimizer=sgd learning-rate=0.1}" -t torch | filecheck %s

// Three layers that are alike are instances of one class, made and called in loops; their
// weights, whatever these are called, are its members. What a layer saves for its backward
// travels as one value.

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
                %w0: tensor<8x8xf32> {dist.role = "parameter", dist.name = "layers.0.fc.weight"}, %b0: tensor<8xf32> {dist.role = "parameter", dist.name = "layers.0.fc.bias"},
                %w1: tensor<8x8xf32> {dist.role = "parameter", dist.name = "layers.1.fc.weight"}, %b1: tensor<8xf32> {dist.role = "parameter", dist.name = "layers.1.fc.bias"},
                %w2: tensor<8x8xf32> {dist.role = "parameter", dist.name = "layers.2.fc.weight"}, %b2: tensor<8xf32> {dist.role = "parameter", dist.name = "layers.2.fc.bias"}) -> (tensor<4x8xf32> {dist.name = "y"}) {
  %p0 = onnx.MatMul(%x, %w0) {scope = "layers.0.fc"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %s0 = onnx.Add(%p0, %b0) {scope = "layers.0.fc"} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %a0 = onnx.Tanh(%s0) {scope = "layers.0.act"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %r0 = onnx.Add(%a0, %x) {scope = "layers.0"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %p1 = onnx.MatMul(%r0, %w1) {scope = "layers.1.fc"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %s1 = onnx.Add(%p1, %b1) {scope = "layers.1.fc"} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %a1 = onnx.Tanh(%s1) {scope = "layers.1.act"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %r1 = onnx.Add(%a1, %r0) {scope = "layers.1"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %p2 = onnx.MatMul(%r1, %w2) {scope = "layers.2.fc"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %s2 = onnx.Add(%p2, %b2) {scope = "layers.2.fc"} : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %a2 = onnx.Tanh(%s2) {scope = "layers.2.act"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %r2 = onnx.Add(%a2, %r1) {scope = "layers.2"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %r2 : tensor<4x8xf32>
}

// CHECK:       class Layers(nn.Module):
// CHECK-NEXT:      """An element of `layers`."""
// CHECK:               modules.add_parameters(self, 'fc.weight', 'fc.bias')
// CHECK:           def forward_1(self, r0):
// CHECK-NEXT:          # fc
// CHECK-NEXT:          s = F.linear(r0, self.fc.weight.t(), self.fc.bias)
// CHECK-NEXT:          # act
// CHECK-NEXT:          a = torch.tanh(s)
// CHECK-NEXT:          del s
// CHECK-NEXT:          r = a + r0
// CHECK-NEXT:          return r, a
// CHECK:           def backward_1(self, r1, a, gradient):

// The first layer needs no gradient of its input, so that it is not like the others.

// CHECK:       class Program0(modules.RankModule):
// CHECK:               modules.add_parameters(self, 'layers.0.fc.weight', 'layers.0.fc.bias')
// CHECK-NEXT:          for i in range(1, 3):
// CHECK-NEXT:              modules.add_module(self, f'layers.{i}', Layers())
// CHECK:           def forward(self, x, labels):
// CHECK-NEXT:          # layers.0
// CHECK-NEXT:          r0, a = self.layers_forward(x)
// CHECK-NEXT:          r1s = []
// CHECK-NEXT:          as_2 = []
// CHECK-NEXT:          for layers in (self.layers[i] for i in range(1, 3)):
// CHECK-NEXT:              r1s.append(r0)
// CHECK-NEXT:              r0, a_2 = layers.forward_1(r0)
// CHECK-NEXT:              as_2.append(a_2)
// CHECK-NEXT:          del a_2
// CHECK:               for layers_2 in (self.layers[i] for i in reversed(range(1, 3))):
// CHECK-NEXT:              r0, *gemm = layers_2.backward_1(r1s.pop(), as_2.pop(), r0)
// CHECK-NEXT:              gemms.append(gemm)
// CHECK:               optimizers.sgd(
// CHECK-NEXT:              (*(x for each in self.layers[:3] for x in (each.fc.weight, each.fc.bias)),),
// CHECK-NEXT:              (gemm_2, reshape, *(x for each in gemms[1::-1] for x in each[:2]),), learning_rate=0.1,
// CHECK-NEXT:              weight_decay=0.0, in_place=True,
// CHECK-NEXT:          )
// CHECK:               return reducesumsquare
