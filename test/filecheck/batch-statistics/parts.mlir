// RUN: distir-opt %s -p "batch-statistics{devices=2 micro_batches=3}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=none batch_norm_devices=2 batch_norm_micro_batches=3}" | filecheck %s --check-prefix GRADIENT
// RUN: not distir-opt %s -p "batch-statistics{devices=5}" 2>&1 | filecheck %s --check-prefix ERROR
// RUN: not distir-opt %s -p "batch-statistics{devices=0}" 2>&1 | filecheck %s --check-prefix NONE

// Two devices in each of three micro-batches have statistics of their own. The running ones
// move by those of the first device, in the entry: a layer's function returns by how much, a
// sum over parts.

// CHECK:      func.func @main
// CHECK:      %{{.*}}, %[[MOVED:.*]], %{{.*}} = func.call @layer(
// CHECK-NEXT: onnx.Constant() {value = dense<7.290000e-01> : tensor<f32>}
// CHECK-NEXT: onnx.Mul(%v, %{{.*}})
// CHECK:      %[[LEFT:.*]] = onnx.Constant() {value = dense<7.290000e-01> : tensor<f32>}
// CHECK-NEXT: %[[KEPT:.*]] = onnx.Mul(%m, %[[LEFT]])
// CHECK-NEXT: onnx.Add(%[[KEPT]], %[[MOVED]])
// CHECK:      func.func private @layer
// CHECK-NEXT: %y, %[[MEAN:.*]], %[[INVERSE:.*]] = train.ghost_batch_norm %x, %scale, %bias {scope = "bn", groups = 6 : i64, epsilon = 5.000000e-01 : f32} : (tensor<12x4x2xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<12x4x2xf32>, tensor<6x4xf32>, tensor<6x4xf32>)
// CHECK:      onnx.Constant() {value = dense<{{\[\[}}8.100000e-02], [0.000000e+00], [9.000000e-02], [0.000000e+00], [1.000000e-01], [0.000000e+00]]> : tensor<6x1xf32>
// CHECK:      onnx.ReduceSum

// GRADIENT: train.ghost_batch_norm_grad

// ERROR: onnx.BatchNormalization {{.*}}(in bn) cannot have statistics of 5 parts of the batch: its 12 samples are no multiple of that
// NONE: batch-statistics: 0 devices and 1 micro-batches; give positive numbers
func.func @main(%x: tensor<12x4x2xf32> {dist.role = "input", dist.name = "x"}, %scale: tensor<4xf32> {dist.role = "parameter", dist.name = "scale"}, %bias: tensor<4xf32> {dist.role = "parameter", dist.name = "bias"}, %m: tensor<4xf32> {dist.role = "constant", dist.name = "m"}, %v: tensor<4xf32> {dist.role = "constant", dist.name = "v"}) -> tensor<12x4x2xf32> {
  %y = func.call @layer(%x, %scale, %bias, %m, %v) : (tensor<12x4x2xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<12x4x2xf32>
  func.return %y : tensor<12x4x2xf32>
}
func.func private @layer(%x: tensor<12x4x2xf32>, %scale: tensor<4xf32>, %bias: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>) -> tensor<12x4x2xf32> {
  %y, %mean, %variance = onnx.BatchNormalization(%x, %scale, %bias, %m, %v) {training_mode = 1 : i64, epsilon = 0.5 : f32, scope = "bn"} : (tensor<12x4x2xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<12x4x2xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return %y : tensor<12x4x2xf32>
}
