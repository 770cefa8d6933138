// RUN: distir-opt %s --split-input-file --verify-diagnostics | distir-opt --split-input-file --verify-diagnostics | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s --check-prefix=STEP

func.func @main(%x: tensor<2x3x4x5xf32> {dist.role = "parameter", dist.name = "x"}, %grid: tensor<2x6x7x2xf32> {dist.role = "parameter", dist.name = "grid"}) -> tensor<f32> {
  %y = onnx.GridSample(%x, %grid) {mode = "cubic", padding_mode = "border", align_corners = 1 : i64} : (tensor<2x3x4x5xf32>, tensor<2x6x7x2xf32>) -> tensor<2x3x6x7xf32>
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<2x3x6x7xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// STEP: train.grid_sample_grad_input %{{.*}}, %grid {mode = "cubic", padding_mode = "border", align_corners} : (tensor<2x3x6x7xf32>, tensor<2x6x7x2xf32>) -> tensor<2x3x4x5xf32>
// STEP: train.grid_sample_grad_grid %{{.*}}, %x, %grid {mode = "cubic", padding_mode = "border", align_corners} : (tensor<2x3x6x7xf32>, tensor<2x3x4x5xf32>, tensor<2x6x7x2xf32>) -> tensor<2x6x7x2xf32>

// -----

func.func @volume(%dy: tensor<2x3x6x7x2xf32>, %grid: tensor<2x6x7x2x3xf32>) -> tensor<2x3x4x5x6xf32> {
  // CHECK: %dx = train.grid_sample_grad_input %dy, %grid {mode = "nearest", padding_mode = "zeros"}
  %dx = train.grid_sample_grad_input %dy, %grid {mode = "nearest", padding_mode = "zeros"} : (tensor<2x3x6x7x2xf32>, tensor<2x6x7x2x3xf32>) -> tensor<2x3x4x5x6xf32>
  func.return %dx : tensor<2x3x4x5x6xf32>
}
