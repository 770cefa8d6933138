// RUN: distir-opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @main(%dy: tensor<2x7xf32>) -> tensor<2x3xf32> {
  // CHECK: train.resize_grad: dimension 1 has 3 elements in dx, which a scale of 2.0 does not make the 7 of dy
  %dx = train.resize_grad %dy {scales = array<f64: 1.0, 2.0>, mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor", cubic_coeff_a = -7.5e-01 : f32} : (tensor<2x7xf32>) -> tensor<2x3xf32>
  func.return %dx : tensor<2x3xf32>
}

// -----

func.func @main(%dy: tensor<2x6xf32>) -> tensor<2x3xf32> {
  // CHECK: train.resize_grad: mode is "bilinear", expected "nearest", "linear" or "cubic"
  %dx = train.resize_grad %dy {scales = array<f64: 1.0, 2.0>, mode = "bilinear", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor", cubic_coeff_a = -7.5e-01 : f32} : (tensor<2x6xf32>) -> tensor<2x3xf32>
  func.return %dx : tensor<2x3xf32>
}
