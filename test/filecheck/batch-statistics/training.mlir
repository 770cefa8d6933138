// RUN: distir-opt %s -p batch-statistics | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=none}" | filecheck %s --check-prefix GRADIENT

// The mean and variance of the batch take the place of the running ones, which are
// written where they are used. The gradient is that of batch normalisation as a whole.

// CHECK:      %[[MEAN:.*]] = onnx.ReduceMean(%x, %{{.*}}) {keepdims = 0 : i64, scope = "bn"} : (tensor<4x6x2xf32>, tensor<2xi64>) -> tensor<6xf32>
// CHECK-NEXT: %[[VAR:.*]] = train.batch_norm_variance %x, %[[MEAN]] {scope = "bn", count = 8 : i64}
// CHECK-NEXT: %y = onnx.BatchNormalization(%x, %scale, %bias, %[[MEAN]], %[[VAR]]) {epsilon = 5.000000e-01 : f32, scope = "bn"}
// CHECK:      %[[NEW:.*]] = onnx.Mul(%[[MEAN]], %{{.*}})
// CHECK:      %[[KEPT:.*]] = onnx.Mul(%m, %{{.*}})
// CHECK-NEXT: %mean = onnx.Add(%[[KEPT]], %[[NEW]])
// CHECK-NEXT: func.return %y, %mean

// GRADIENT:     train.batch_norm_sums
// GRADIENT-NOT: onnx.ReduceMean
// GRADIENT:     train.batch_norm_input_grad
func.func @main(%x: tensor<4x6x2xf32> {dist.role = "parameter", dist.name = "x"}, %scale: tensor<6xf32> {dist.role = "parameter", dist.name = "scale"}, %bias: tensor<6xf32> {dist.role = "parameter", dist.name = "bias"}, %m: tensor<6xf32> {dist.role = "state", dist.name = "m"}, %v: tensor<6xf32> {dist.role = "state", dist.name = "v"}) -> (tensor<4x6x2xf32>, tensor<6xf32>) {
  %y, %mean, %variance = onnx.BatchNormalization(%x, %scale, %bias, %m, %v) {training_mode = 1 : i64, epsilon = 0.5 : f32, scope = "bn"} : (tensor<4x6x2xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<4x6x2xf32>, tensor<6xf32>, tensor<6xf32>)
  func.return %y, %mean : tensor<4x6x2xf32>, tensor<6xf32>
}
