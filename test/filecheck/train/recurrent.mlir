// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s

// A layer without biases or initial states: they are zero, and nobody asks for their gradients.
func.func @main(%x: tensor<3x2x4xf32> {dist.role = "input"}, %w: tensor<1x12x4xf32> {dist.role = "parameter", dist.name = "w"}, %r: tensor<1x12x3xf32> {dist.role = "parameter", dist.name = "r"}) -> tensor<f32> {
  %y, %h, %c = onnx.LSTM(%x, %w, %r) {hidden_size = 3 : i64} : (tensor<3x2x4xf32>, tensor<1x12x4xf32>, tensor<1x12x3xf32>) -> (tensor<3x1x2x3xf32>, tensor<1x2x3xf32>, tensor<1x2x3xf32>)
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<3x1x2x3xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// CHECK:      %[[START_CELL:.*]], %[[DX:.*]], %[[DW:.*]], %[[DR:.*]], %[[DB:.*]], %[[START:.*]] = train.lstm_grad {{.*}}, %x, %w, %r, {{.*}} {direction = "forward"}
// CHECK-NEXT: func.return %s, %[[DW]], %[[DR]]

// -----

func.func @main(%x: tensor<3x2x4xf32> {dist.role = "input"}, %w: tensor<1x9x4xf32> {dist.role = "parameter", dist.name = "w"}, %r: tensor<1x9x3xf32>, %h: tensor<1x2x3xf32>, %lengths: tensor<2xi32>) -> tensor<f32> {
  %y, %last = onnx.GRU(%x, %w, %r, none, %lengths) {hidden_size = 3 : i64} : (tensor<3x2x4xf32>, tensor<1x9x4xf32>, tensor<1x9x3xf32>, tensor<2xi32>) -> (tensor<3x1x2x3xf32>, tensor<1x2x3xf32>)
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<3x1x2x3xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// CHECK: onnx.GRU {{.*}}has no gradient with sequences of several lengths

// -----

func.func @main(%x: tensor<3x2x4xf32> {dist.role = "input"}, %w: tensor<1x3x4xf32> {dist.role = "parameter", dist.name = "w"}, %r: tensor<1x3x3xf32>) -> tensor<f32> {
  %y, %last = onnx.RNN(%x, %w, %r) {hidden_size = 3 : i64, activations = ["Relu"]} : (tensor<3x2x4xf32>, tensor<1x3x4xf32>, tensor<1x3x3xf32>) -> (tensor<3x1x2x3xf32>, tensor<1x2x3xf32>)
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<3x1x2x3xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// CHECK: onnx.RNN {{.*}}has no gradient with other activations than tanh and sigmoid
