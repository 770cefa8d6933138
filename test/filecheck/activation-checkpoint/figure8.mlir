// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=KEPT
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=full}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=full},inline-calls" | filecheck %s --check-prefix=FIGURE

// Figure 8 of the DistIR paper: gradient checkpointing of an MLP of two layers. What the
// first layer gives is forgotten behind the forward and computed again in the backward.

// KEPT:  %[[P:.*]], %[[A:.*]] = func.call @mlp_forward(%x, %w1, %w2)
// KEPT:  func.call @mlp_backward(%x, %w2, %[[A]],

// CHECK:      %[[P:.*]] = func.call @mlp_forward(%x, %w1, %w2) : ({{.*}}) -> tensor<8x4xf32>
// CHECK:      %[[ERROR:.*]] = onnx.Sub(%[[P]], %labels)
// CHECK:      %[[DP:.*]] = onnx.Mul(%[[ERROR]],
// CHECK-NEXT: func.call @mlp_backward_recompute(%x, %w2, %w1, %[[DP]])
// CHECK:      func.func private @mlp_forward
// CHECK:      func.func private @mlp_backward_recompute(
// CHECK-NEXT: %[[H:.*]] = onnx.MatMul(%x, %w1)
// CHECK-NEXT: %[[A:.*]] = onnx.Relu(%[[H]])
// CHECK:      onnx.Gemm(%[[A]], %gradient) {transA = 1 : i64}

// The whole step in one function, as in the paper.
// FIGURE:      %[[H:.*]] = onnx.MatMul(%x, %w1)
// FIGURE-NEXT: %[[F:.*]] = onnx.Relu(%[[H]])
// FIGURE-NEXT: %[[P:.*]] = onnx.MatMul(%[[F]], %w2)
// FIGURE-NOT:  %[[F]]
// FIGURE:      %[[ERROR:.*]] = onnx.Sub(%[[P]], %labels)
// FIGURE:      %[[DP:.*]] = onnx.Mul(%[[ERROR]],
// FIGURE-NEXT: %[[H2:.*]] = onnx.MatMul(%x, %w1)
// FIGURE-NEXT: %[[B:.*]] = onnx.Relu(%[[H2]])
// FIGURE:      %[[DA:.*]] = onnx.Gemm(%[[DP]], %w2) {transB = 1 : i64}
// FIGURE-NEXT: %[[DW2:.*]] = onnx.Gemm(%[[B]], %[[DP]]) {transA = 1 : i64}
// FIGURE:      %[[DW1:.*]] = onnx.Gemm(%x, {{.*}}) {transA = 1 : i64}
// FIGURE:      train.sgd %w1, %[[DW1]]
// FIGURE:      train.sgd %w2, %[[DW2]]

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<32x4xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x4xf32> {
  %p = func.call @mlp(%x, %w1, %w2) : (tensor<8x16xf32>, tensor<16x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %p : tensor<8x4xf32>
}
func.func private @mlp(%x: tensor<8x16xf32> {dist.role = "input"}, %w1: tensor<16x32xf32> {dist.role = "parameter"}, %w2: tensor<32x4xf32> {dist.role = "parameter"}) -> tensor<8x4xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %p = onnx.MatMul(%a, %w2) : (tensor<8x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %p : tensor<8x4xf32>
}
