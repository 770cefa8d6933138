// RUN: distir-opt %s --split-input-file --verify-diagnostics | distir-opt --split-input-file --verify-diagnostics | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s --check-prefix=STEP

func.func @main(%x: tensor<9x4x5xf32> {dist.role = "parameter", dist.name = "x"}, %targets: tensor<4x3xi64> {dist.role = "input", dist.name = "targets"}, %steps: tensor<4xi64> {dist.role = "input", dist.name = "steps"}, %labels: tensor<4xi64> {dist.role = "input", dist.name = "labels"}) -> tensor<f32> {
  // CHECK: %losses = train.ctc_loss %x, %targets, %steps, %labels {blank = 0 : i64, zero_infinity} : (tensor<9x4x5xf32>, tensor<4x3xi64>, tensor<4xi64>, tensor<4xi64>) -> tensor<4xf32>
  %losses = train.ctc_loss %x, %targets, %steps, %labels {blank = 0 : i64, zero_infinity} : (tensor<9x4x5xf32>, tensor<4x3xi64>, tensor<4xi64>, tensor<4xi64>) -> tensor<4xf32>
  %s = onnx.ReduceSum(%losses) {keepdims = 0 : i64} : (tensor<4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// STEP: train.ctc_loss_grad %{{.*}}, %x, %targets, %steps, %labels {blank = 0 : i64, zero_infinity}
