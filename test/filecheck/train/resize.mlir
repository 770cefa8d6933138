// RUN: distir-opt %s --split-input-file --verify-diagnostics | distir-opt --split-input-file --verify-diagnostics | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s --check-prefix=STEP

func.func @main(%x: tensor<2x3x4x4xf32> {dist.role = "parameter", dist.name = "x"}) -> tensor<f32> {
  %scales = onnx.Constant() {value = dense<[1.0, 1.0, 2.0, 2.0]> : tensor<4xf32>} : () -> tensor<4xf32>
  %y = onnx.Resize(%x, none, %scales) {mode = "linear"} : (tensor<2x3x4x4xf32>, tensor<4xf32>) -> tensor<2x3x8x8xf32>
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<2x3x8x8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// Of the input it needs only the shape.
// STEP: train.resize_grad %{{.*}} {
// STEP-SAME: scales = array<f64: 1.000000e+00, 1.000000e+00, 2.000000e+00, 2.000000e+00>
// STEP-SAME: mode = "linear", coordinate_transformation_mode = "half_pixel"
// STEP-SAME: (tensor<2x3x8x8xf32>) -> tensor<2x3x4x4xf32>

// -----

func.func @main(%dy: tensor<2x6xf32>) -> tensor<2x3xf32> {
  // CHECK: %dx = train.resize_grad %dy
  // CHECK-SAME: (tensor<2x6xf32>) -> tensor<2x3xf32>
  %dx = train.resize_grad %dy {scales = array<f64: 1.0, 2.0>, mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor", cubic_coeff_a = -7.5e-01 : f32} : (tensor<2x6xf32>) -> tensor<2x3xf32>
  func.return %dx : tensor<2x3xf32>
}
