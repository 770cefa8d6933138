// RUN: distir-opt %s -p "sequence-parallel" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},sequence-parallel" | filecheck %s --check-prefix=STEP
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},sequence-parallel,tensor-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=LAYOUT

// A norm of each head by itself is inside of a block: its heads are split, not a sequence,
// whichever dimension is where a sequence would be. Two heads of keys, or one, over four
// devices are no reason to stop either.

// CHECK:      dist.constrain %x {{.*}}[{}, {t}, {}]
// CHECK:      onnx.RMSNormalization(%q4
// CHECK-NOT:  dist.constrain %{{[qkm]}}
// CHECK:      dist.constrain %y {{.*}}[{}, {t}, {}]

// STEP:       dist.constrain %x
// STEP:       train.rms_norm %q4
// STEP:       train.rms_norm %kt
// STEP:       train.rms_norm %m4
// STEP:       dist.constrain %y
// STEP-NOT:   dist.constrain {{.*}} : tensor<{{[0-9]+x[0-9]+x[0-9]+x[0-9]}}

// LAYOUT:     onnx.Add({{.*}}[{}, {t}, {}]

device.mesh @mesh on @box <t = 4> [0 to 4]
func.func @main(%x: tensor<2x8x16xf32> {dist.role = "input", dist.name = "x"}, %g: tensor<16xf32> {dist.role = "parameter", dist.name = "g"}, %gq: tensor<4xf32> {dist.role = "parameter", dist.name = "gq"}, %wq: tensor<16x16xf32> {dist.role = "parameter", dist.name = "wq"}, %wk: tensor<16x8xf32> {dist.role = "parameter", dist.name = "wk"}, %wm: tensor<16x4xf32> {dist.role = "parameter", dist.name = "wm"}, %wo: tensor<16x16xf32> {dist.role = "parameter", dist.name = "wo"}) -> tensor<2x8x16xf32> {
  %heads = onnx.Constant() {value = dense<[2, 8, 4, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %kheads = onnx.Constant() {value = dense<[2, 8, 2, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %one = onnx.Constant() {value = dense<[2, 8, 1, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %axes = onnx.Constant() {value = dense<[1, 2]> : tensor<2xi64>} : () -> tensor<2xi64>
  %flat = onnx.Constant() {value = dense<[2, 8, 16]> : tensor<3xi64>} : () -> tensor<3xi64>
  %n = onnx.RMSNormalization(%x, %g) : (tensor<2x8x16xf32>, tensor<16xf32>) -> tensor<2x8x16xf32>
  %q = onnx.MatMul(%n, %wq) : (tensor<2x8x16xf32>, tensor<16x16xf32>) -> tensor<2x8x16xf32>
  %q4 = onnx.Reshape(%q, %heads) : (tensor<2x8x16xf32>, tensor<4xi64>) -> tensor<2x8x4x4xf32>
  %qn = onnx.RMSNormalization(%q4, %gq) : (tensor<2x8x4x4xf32>, tensor<4xf32>) -> tensor<2x8x4x4xf32>
  %k = onnx.MatMul(%n, %wk) : (tensor<2x8x16xf32>, tensor<16x8xf32>) -> tensor<2x8x8xf32>
  %k4 = onnx.Reshape(%k, %kheads) : (tensor<2x8x8xf32>, tensor<4xi64>) -> tensor<2x8x2x4xf32>
  %kt = onnx.Transpose(%k4) {perm = [0, 2, 1, 3]} : (tensor<2x8x2x4xf32>) -> tensor<2x2x8x4xf32>
  %kn = onnx.RMSNormalization(%kt, %gq) : (tensor<2x2x8x4xf32>, tensor<4xf32>) -> tensor<2x2x8x4xf32>
  %ks = onnx.ReduceSum(%kn, %axes) {keepdims = 0} : (tensor<2x2x8x4xf32>, tensor<2xi64>) -> tensor<2x4xf32>
  %m = onnx.MatMul(%n, %wm) : (tensor<2x8x16xf32>, tensor<16x4xf32>) -> tensor<2x8x4xf32>
  %m4 = onnx.Reshape(%m, %one) : (tensor<2x8x4xf32>, tensor<4xi64>) -> tensor<2x8x1x4xf32>
  %mn = onnx.RMSNormalization(%m4, %gq) : (tensor<2x8x1x4xf32>, tensor<4xf32>) -> tensor<2x8x1x4xf32>
  %kshape = onnx.Constant() {value = dense<[2, 1, 1, 4]> : tensor<4xi64>} : () -> tensor<4xi64>
  %ks4 = onnx.Reshape(%ks, %kshape) : (tensor<2x4xf32>, tensor<4xi64>) -> tensor<2x1x1x4xf32>
  %a = onnx.Mul(%qn, %ks4) : (tensor<2x8x4x4xf32>, tensor<2x1x1x4xf32>) -> tensor<2x8x4x4xf32>
  %b = onnx.Mul(%a, %mn) : (tensor<2x8x4x4xf32>, tensor<2x8x1x4xf32>) -> tensor<2x8x4x4xf32>
  %c = onnx.Reshape(%b, %flat) : (tensor<2x8x4x4xf32>, tensor<3xi64>) -> tensor<2x8x16xf32>
  %o = onnx.MatMul(%c, %wo) : (tensor<2x8x16xf32>, tensor<16x16xf32>) -> tensor<2x8x16xf32>
  %y = onnx.Add(%x, %o) : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %r = onnx.RMSNormalization(%y, %g) : (tensor<2x8x16xf32>, tensor<16xf32>) -> tensor<2x8x16xf32>
  func.return %r : tensor<2x8x16xf32>
}
