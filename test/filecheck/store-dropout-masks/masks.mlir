// RUN: distir-opt %s -p train-dropout,store-dropout-masks | filecheck %s
// RUN: distir-opt %s -p train-dropout,store-dropout-masks,store-dropout-masks | filecheck %s
// RUN: distir-opt %s -p "train-dropout,store-dropout-masks,differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=STEP

// CHECK:      %d, %mask = train.dropout
// CHECK-SAME: (tensor<8x4xf32>, tensor<8x4xi1>)
// CHECK:      func.return %d

// The gradient takes the mask and draws nothing.

// STEP: %d, %mask = train.dropout %p, %optimizer_step
// STEP: train.dropout_grad %{{.*}}, %mask {ratio

func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x4xf32> {
  %ratio = onnx.Constant() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %on = onnx.Constant() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  %p = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %d = onnx.Dropout(%p, %ratio, %on) : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
  func.return %d : tensor<8x4xf32>
}
