// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd momentum=0.9}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=none}" | filecheck %s --check-prefix=GRADIENT
// RUN: distir-opt %s -p "differentiate{optimizer=adamw learning-rate=0.5 clip=1.0}" | filecheck %s --check-prefix=ADAMW

// A training step takes the labels after the inputs and the states last, and says what
// its results replace in the next step.

// CHECK-LABEL: func.func @main(
// CHECK-SAME:  %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}
// CHECK-SAME:  %labels: tensor<8x4xf32> {dist.role = "label", dist.name = "labels"}
// CHECK-SAME:  %w1: {{[^%]*}}, %w2:
// CHECK-SAME:  %w1_momentum: tensor<16x32xf32> {dist.role = "state", dist.name = "w1.momentum", dist.of = "w1"}
// CHECK-SAME:  -> (tensor<f32> {dist.role = "loss", dist.name = "loss"}, tensor<16x32xf32> {dist.name = "w1", dist.updates = "w1"}
// CHECK-SAME:  dist.updates = "w2.momentum"

// The layer's forward also gives what its backward needs. Here its result is enough: it
// tells where ReLU was open.
// CHECK-NEXT:  %[[A:.*]] = func.call @dense_forward(%x, %w1)
// CHECK-NEXT:  %[[P:.*]] = onnx.MatMul(%[[A]], %w2)
// CHECK:       %[[TOTAL:.*]] = onnx.ReduceSumSquare(
// CHECK:       %[[LOSS:.*]] = onnx.Div(%[[TOTAL]],
// CHECK:       %[[DA:.*]] = onnx.Gemm({{.*}}, %w2) {transB = 1 : i64}
// CHECK:       %[[DW2:.*]] = onnx.Gemm(%[[A]], {{.*}}) {transA = 1 : i64}
// CHECK:       %[[DW1:.*]] = func.call @dense_backward(%x, %[[A]], %[[DA]])
// CHECK:       train.sgd %w1, %[[DW1]] momentum %w1_momentum
// CHECK:       train.sgd %w2, %[[DW2]] momentum %w2_momentum
// CHECK:       func.return %[[LOSS]]
// CHECK:       func.func private @dense_forward({{.*}}) -> tensor<8x32xf32> {
// CHECK:       func.func private @dense_backward({{.*}}) -> tensor<16x32xf32>
// CHECK-SAME:  attributes {train.forward = @dense_forward, train.saved = ["argument 0", "result 0"]}

// GRADIENT:     -> (tensor<f32> {dist.role = "loss", dist.name = "loss"}, tensor<16x32xf32> {dist.role = "gradient", dist.name = "w1.gradient", dist.of = "w1"}, tensor<32x4xf32> {dist.role = "gradient", dist.name = "w2.gradient", dist.of = "w2"})
// GRADIENT-NOT: dist.updates

// ADAMW:      %labels: tensor<8xi64> {dist.role = "label"
// ADAMW-SAME: %optimizer_step: tensor<i64> {dist.role = "state", dist.name = "optimizer.step", dist.counter}
// ADAMW:      train.cross_entropy %{{.*}}, %labels {scope = "loss", divisor = 8 : i64}
// ADAMW:      train.adamw {{.*}}learning_rate = 5.000000e-01

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<32x4xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x4xf32> {
  %a = func.call @dense(%x, %w1) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %p = onnx.MatMul(%a, %w2) : (tensor<8x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %p : tensor<8x4xf32>
}
func.func private @dense(%x: tensor<8x16xf32> {dist.role = "input"}, %w: tensor<16x32xf32> {dist.role = "parameter"}) -> tensor<8x32xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  func.return %a : tensor<8x32xf32>
}
