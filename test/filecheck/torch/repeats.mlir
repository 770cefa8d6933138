// RUN: distir-opt %s -t torch | filecheck %s

// What is done twice is one method. The caller does not hold what the method is the last to need, as if
// its ops were written out: lists give away what was computed here, and the method deletes it.

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<4x8xf32> {dist.name = "y"}) {
  %p = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %q = onnx.Exp(%p) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a0 = onnx.Sin(%p) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b0 = onnx.Mul(%a0, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c0 = onnx.Tanh(%b0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d0 = onnx.Sub(%c0, %a0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %a1 = onnx.Sin(%d0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b1 = onnx.Mul(%a1, %q) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c1 = onnx.Tanh(%b1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d1 = onnx.Sub(%c1, %a1) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = onnx.Add(%d1, %b0) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK:           def forward(self, x):
// CHECK-NEXT:          p = x @ self.w
// CHECK-NEXT:          q = torch.exp(p)
// CHECK-NEXT:          given = [p]
// CHECK-NEXT:          del p
// CHECK-NEXT:          b0, d0 = self.repeat0(given.pop(0), x)
// CHECK-NEXT:          given_2 = [d0, q]
// CHECK-NEXT:          del d0, q
// CHECK-NEXT:          b1, d1 = self.repeat0(given_2.pop(0), given_2.pop(0))
// CHECK-NEXT:          del b1
// CHECK-NEXT:          y = d1.add_(b0)
// CHECK:           def repeat0(self, p, x):
// CHECK-NEXT:          a = torch.sin(p)
// CHECK-NEXT:          del p
// CHECK-NEXT:          b = a * x
// CHECK-NEXT:          del x
// CHECK-NEXT:          c = torch.tanh(b)
// CHECK-NEXT:          d = c - a
// CHECK-NEXT:          del c, a
// CHECK-NEXT:          return b, d
