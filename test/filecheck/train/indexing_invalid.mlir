// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @shape(%dy: tensor<4x7xf32>, %i: tensor<4xi64>) {
  // CHECK: train.gather_grad: dy has shape [4, 7], expected [4, 8]
  %a = train.gather_grad %dy, %i {axis = 0 : i64} : (tensor<4x7xf32>, tensor<4xi64>) -> tensor<16x8xf32>
  func.return
}

// -----

func.func @indices(%dy: tensor<4x8xf32>, %i: tensor<4xf32>) {
  // CHECK: train.gather_grad: indices has elements of type f32, expected i32 or i64
  %a = train.gather_grad %dy, %i {axis = 0 : i64} : (tensor<4x8xf32>, tensor<4xf32>) -> tensor<16x8xf32>
  func.return
}

// -----

func.func @axis(%dy: tensor<4x8xf32>, %i: tensor<4xi64>) {
  // CHECK: train.gather_grad: axis 2 is outside of a tensor with 2 dimensions
  %a = train.gather_grad %dy, %i {axis = 2 : i64} : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<16x8xf32>
  func.return
}

// -----

func.func @data(%dy: tensor<4x8xf32>, %i: tensor<4xi64>, %w: tensor<12x8xf32>) {
  // CHECK: train.gather_grad: data has shape [12, 8], expected [16, 8]
  %a = train.gather_grad %dy, %i like %w {axis = 0 : i64} : (tensor<4x8xf32>, tensor<4xi64>, tensor<12x8xf32>) -> tensor<16x8xf32>
  func.return
}
