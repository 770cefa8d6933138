// RUN: distir-opt %s -t torch --split-input-file | filecheck %s

// A mask that may hold minus infinity everywhere keeps attention written out.

func.func @main(%q: tensor<1x2x4x8xf32>, %k: tensor<1x2x4x8xf32>, %v: tensor<1x2x4x8xf32>, %bias: tensor<4x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) {
  %t = onnx.Transpose(%k) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x4xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x4x4xf32>
  %c = onnx.Constant() {value = dense<4.0> : tensor<f32>} : () -> tensor<f32>
  %s = onnx.Div(%p, %c) : (tensor<1x2x4x4xf32>, tensor<f32>) -> tensor<1x2x4x4xf32>
  %w = onnx.Softmax(%s) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y = onnx.MatMul(%w, %v) : (tensor<1x2x4x4xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %p2 = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x4x4xf32>
  %m = onnx.Add(%p2, %bias) : (tensor<1x2x4x4xf32>, tensor<4x4xf32>) -> tensor<1x2x4x4xf32>
  %w2 = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %z = onnx.MatMul(%w2, %v) : (tensor<1x2x4x4xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  func.return %y, %z : tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>
}

// CHECK:       def forward(self, q, k, v, bias):
// CHECK-NEXT:      t = k.transpose(2, 3)
// CHECK-NEXT:      y = F.scaled_dot_product_attention(q, k, v, scale=0.25)
// CHECK-NEXT:      p2 = q @ t
// CHECK-NEXT:      del t
// CHECK-NEXT:      m = p2.add_(bias)
// CHECK-NEXT:      del p2
// CHECK-NEXT:      w2 = F.softmax(m, -1)
// CHECK-NEXT:      del m
// CHECK-NEXT:      z = w2 @ v
// CHECK-NEXT:      del w2
// CHECK-NEXT:      return y, z

// -----

// A mask computed from a boolean is finite, also through a call.

func.func @attend(%q: tensor<1x2x4x8xf32>, %mask: tensor<4x4xf32>) -> tensor<1x2x4x8xf32> {
  %t = onnx.Transpose(%q) {perm = [0 : i64, 1 : i64, 3 : i64, 2 : i64]} : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x4xf32>
  %p = onnx.MatMul(%q, %t) : (tensor<1x2x4x8xf32>, tensor<1x2x8x4xf32>) -> tensor<1x2x4x4xf32>
  %m = onnx.Add(%p, %mask) : (tensor<1x2x4x4xf32>, tensor<4x4xf32>) -> tensor<1x2x4x4xf32>
  %w = onnx.Softmax(%m) {axis = -1 : i64} : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %y = onnx.MatMul(%w, %q) : (tensor<1x2x4x4xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  func.return %y : tensor<1x2x4x8xf32>
}
func.func @main(%q: tensor<1x2x4x8xf32>, %keep: tensor<4x4xi1>) -> tensor<1x2x4x8xf32> {
  %zero = onnx.Constant() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %low = onnx.Constant() {value = dense<-1.0e30> : tensor<f32>} : () -> tensor<f32>
  %mask = onnx.Where(%keep, %zero, %low) : (tensor<4x4xi1>, tensor<f32>, tensor<f32>) -> tensor<4x4xf32>
  %y = func.call @attend(%q, %mask) : (tensor<1x2x4x8xf32>, tensor<4x4xf32>) -> tensor<1x2x4x8xf32>
  func.return %y : tensor<1x2x4x8xf32>
}

// CHECK:       def attend(self, q, mask):
// CHECK-NEXT:      y = F.scaled_dot_product_attention(q, q, q, mask, scale=1.0)

// -----

func.func @main(%x: tensor<2x4x8xf32>, %w: tensor<8x8xf32>, %b: tensor<8xf32>, %s: tensor<f32>) -> tensor<2x4x8xf32> {
  %t = onnx.Transpose(%w) {perm = [1 : i64, 0 : i64]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %p = onnx.MatMul(%x, %t) : (tensor<2x4x8xf32>, tensor<8x8xf32>) -> tensor<2x4x8xf32>
  %l = onnx.Add(%b, %p) : (tensor<8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %root = onnx.Constant() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %one = onnx.Constant() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %d = onnx.Div(%l, %root) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %e = onnx.Erf(%d) : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %a = onnx.Add(%e, %one) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %m = onnx.Mul(%l, %a) : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %g = onnx.Mul(%m, %half) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %i = onnx.Identity(%g) : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %z = onnx.Sigmoid(%i) : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %y = onnx.Mul(%z, %i) : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  func.return %y : tensor<2x4x8xf32>
}

// CHECK:       def forward(self, x, w, b, s):
// CHECK-NEXT:      l = F.linear(x, w, b)
// CHECK-NEXT:      g = F.gelu(l)
// CHECK-NEXT:      del l
// CHECK-NEXT:      y = F.silu(g)
// CHECK-NEXT:      del g
// CHECK-NEXT:      return y

// -----

// Almost GELU: another constant.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %root = onnx.Constant() {value = dense<1.5> : tensor<f32>} : () -> tensor<f32>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %one = onnx.Constant() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %d = onnx.Div(%x, %root) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %e = onnx.Erf(%d) : (tensor<4xf32>) -> tensor<4xf32>
  %a = onnx.Add(%e, %one) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %m = onnx.Mul(%x, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g = onnx.Mul(%m, %half) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  func.return %g : tensor<4xf32>
}

// CHECK:       torch.erf
// CHECK-NOT:   F.gelu
