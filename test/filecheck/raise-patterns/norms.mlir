// RUN: distir-opt %s -p raise-patterns --split-input-file | filecheck %s

// A norm by the root mean square, GELU by erf, and SiLU.

func.func @main(%x: tensor<2x4x8xf32>, %w: tensor<8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>) {
  %two = onnx.Constant() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %last = onnx.Constant() {value = dense<-1> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %square = onnx.Pow(%x, %two) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %mean = onnx.ReduceMean(%square, %last) : (tensor<2x4x8xf32>, tensor<1xi64>) -> tensor<2x4x1xf32>
  %shifted = onnx.Add(%mean, %eps) : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4x1xf32>
  %root = onnx.Sqrt(%shifted) : (tensor<2x4x1xf32>) -> tensor<2x4x1xf32>
  %inverse = onnx.Reciprocal(%root) : (tensor<2x4x1xf32>) -> tensor<2x4x1xf32>
  %n = onnx.Mul(%x, %inverse) : (tensor<2x4x8xf32>, tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
  %y = onnx.Mul(%w, %n) {scope = "norm"} : (tensor<8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %sqrt2 = onnx.Constant() {value = dense<1.41421354> : tensor<f32>} : () -> tensor<f32>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %one = onnx.Constant() {value = dense<1.0> : tensor<f32>} : () -> tensor<f32>
  %d = onnx.Div(%y, %sqrt2) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %e = onnx.Erf(%d) : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %a = onnx.Add(%e, %one) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %m = onnx.Mul(%y, %a) : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %g = onnx.Mul(%m, %half) : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4x8xf32>
  %gate = onnx.Sigmoid(%y) : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %s = onnx.Mul(%y, %gate) : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  func.return %g, %s : tensor<2x4x8xf32>, tensor<2x4x8xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %y = onnx.RMSNormalization(%x, %w) {epsilon = 5.000000e-01 : f32, stash_type = 1 : i64, scope = "norm"}
// CHECK-NEXT:   %g = onnx.Gelu(%y)
// CHECK-NEXT:   %s = onnx.Swish(%y)
// CHECK-NEXT:   func.return %g, %s

// -----

// Another axis, an exponent of three, and a gate of another value are something else.

func.func @main(%x: tensor<4x4xf32>, %w: tensor<4xf32>, %z: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %three = onnx.Constant() {value = dense<3.0> : tensor<f32>} : () -> tensor<f32>
  %first = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %last = onnx.Constant() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %eps = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %square = onnx.Mul(%x, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %mean = onnx.ReduceMean(%square, %first) : (tensor<4x4xf32>, tensor<1xi64>) -> tensor<1x4xf32>
  %shifted = onnx.Add(%mean, %eps) : (tensor<1x4xf32>, tensor<f32>) -> tensor<1x4xf32>
  %root = onnx.Sqrt(%shifted) : (tensor<1x4xf32>) -> tensor<1x4xf32>
  %n = onnx.Div(%x, %root) : (tensor<4x4xf32>, tensor<1x4xf32>) -> tensor<4x4xf32>
  %y = onnx.Mul(%n, %w) : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  %cube = onnx.Pow(%x, %three) : (tensor<4x4xf32>, tensor<f32>) -> tensor<4x4xf32>
  %mean3 = onnx.ReduceMean(%cube, %last) : (tensor<4x4xf32>, tensor<1xi64>) -> tensor<4x1xf32>
  %shifted3 = onnx.Add(%mean3, %eps) : (tensor<4x1xf32>, tensor<f32>) -> tensor<4x1xf32>
  %root3 = onnx.Sqrt(%shifted3) : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %n3 = onnx.Div(%x, %root3) : (tensor<4x4xf32>, tensor<4x1xf32>) -> tensor<4x4xf32>
  %y3 = onnx.Mul(%n3, %w) : (tensor<4x4xf32>, tensor<4xf32>) -> tensor<4x4xf32>
  %gate = onnx.Sigmoid(%z) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = onnx.Mul(%x, %gate) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y, %y3, %s : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// CHECK:      func.func @main
// CHECK-NOT:    onnx.{{RMSNormalization|Swish}}

// -----

// Slices that take all of a value are one Split, whatever their order; others stay.

func.func @main(%x: tensor<2x8xf32>, %z: tensor<8x2xf32>) -> (tensor<2x3xf32>, tensor<2x5xf32>, tensor<3x2xf32>, tensor<4x2xf32>) {
  %0 = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %1 = onnx.Constant() {value = dense<1> : tensor<1xi64>} : () -> tensor<1xi64>
  %3 = onnx.Constant() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %4 = onnx.Constant() {value = dense<4> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = onnx.Constant() {value = dense<9223372036854775807> : tensor<1xi64>} : () -> tensor<1xi64>
  %b = onnx.Slice(%x, %3, %end, %1) : (tensor<2x8xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<2x5xf32>
  %a = onnx.Slice(%x, %0, %3, %1) : (tensor<2x8xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<2x3xf32>
  %c = onnx.Slice(%z, %0, %3, %0) : (tensor<8x2xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<3x2xf32>
  %d = onnx.Slice(%z, %4, %end, %0) : (tensor<8x2xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4x2xf32>
  func.return %a, %b, %c, %d : tensor<2x3xf32>, tensor<2x5xf32>, tensor<3x2xf32>, tensor<4x2xf32>
}

// CHECK:        %{{.*}} = onnx.Constant() {value = dense<[3, 5]>
// CHECK-NEXT:   %a, %b = onnx.Split(%x, %{{.*}}) {axis = 1 : i64}
// CHECK-NEXT:   %c = onnx.Slice(%z
// CHECK-NEXT:   %d = onnx.Slice(%z
