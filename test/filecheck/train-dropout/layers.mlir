// RUN: distir-opt %s -p "train-dropout{seed=7}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd dropout-seed=7}" | filecheck %s --check-prefix=STEP

// The program counts its steps. A layer's counter is another one for each call in each
// step; the dropouts of one function differ in their streams.

// CHECK:      func.func @main({{.*}}, %optimizer_step: tensor<i64> {dist.role = "state", dist.name = "optimizer.step", dist.counter})
// CHECK:      %[[CALLS:.*]] = onnx.Constant() {value = dense<2> : tensor<i64>, scope = "h.0"}
// CHECK-NEXT: %[[FIRST:.*]] = onnx.Constant() {value = dense<0> : tensor<i64>, scope = "h.0"}
// CHECK-NEXT: %[[BEFORE:.*]] = onnx.Mul(%optimizer_step, %[[CALLS]])
// CHECK-NEXT: %[[COUNTER:.*]] = onnx.Add(%[[BEFORE]], %[[FIRST]])
// CHECK-NEXT: %a = func.call @layer(%x, %w, %[[COUNTER]]) {scope = "h.0"}
// CHECK:      %{{.*}} = onnx.Constant() {value = dense<1> : tensor<i64>, scope = "h.1"}
// CHECK:      %b = func.call @layer(
// CHECK:      func.return %b

// CHECK:      func.func private @layer(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>, %counter: tensor<i64>)
// CHECK:      %d = train.dropout %p, %counter {scope = "h.*.drop", ratio = 2.500000e-01 : f64, seed = 7 : i64, stream = 0 : i64}
// CHECK:      %e = train.dropout %d, %counter {ratio = 5.000000e-01 : f64, seed = 7 : i64, stream = 1 : i64}
// CHECK-NEXT: func.return %e

// The step is counted, and the backward draws the same numbers again.

// STEP:       tensor<i64> {dist.name = "optimizer.step", dist.updates = "optimizer.step"}
// STEP:       func.func private @layer_backward
// STEP:       train.dropout %gradient, %counter {ratio = 5.000000e-01 : f64, seed = 7 : i64, stream = 1 : i64}
// STEP:       train.dropout %{{.*}}, %counter {scope = "h.*.drop", ratio = 2.500000e-01 : f64, seed = 7 : i64, stream = 0 : i64}

func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x4xf32> {
  %a = func.call @layer(%x, %w) {scope = "h.0"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %b = func.call @layer(%a, %w) {scope = "h.1"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  func.return %b : tensor<8x4xf32>
}
func.func private @layer(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %ratio = onnx.Constant() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %none = onnx.Constant() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %on = onnx.Constant() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  %off = onnx.Constant() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  %p = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %d = onnx.Dropout(%p, %ratio, %on) {scope = "h.*.drop"} : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
  // Without a mode, but another one is in training: PyTorch writes attention so.
  %e = onnx.Dropout(%d, %half) : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x4xf32>
  // Nothing is dropped here.
  %f = onnx.Dropout(%e, %none, %on) : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
  func.return %f : tensor<8x4xf32>
}
