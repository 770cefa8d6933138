// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @rank(%x: tensor<6xf32>) {
  // CHECK: train.batch_norm_sums: x has 1 dimensions, expected at least 2
  %0, %1 = train.batch_norm_sums %x, %x, %x, %x {epsilon = 0.5 : f32} : (tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
  func.return
}

// -----

func.func @channels(%x: tensor<6x4xf32>, %v: tensor<6xf32>) {
  // CHECK: train.batch_norm_sums: mean has shape [6], expected [4]
  %0, %1 = train.batch_norm_sums %x, %x, %v, %v {epsilon = 0.5 : f32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
  func.return
}

// -----

func.func @element(%x: tensor<6x4xf32>, %v: tensor<4xf32>) {
  // CHECK: train.batch_norm_sums: dbias has elements of type f16, expected f32
  %0, %1 = train.batch_norm_sums %x, %x, %v, %v {epsilon = 0.5 : f32} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf16>)
  func.return
}

// -----

func.func @count(%x: tensor<6x4xf32>, %v: tensor<4xf32>) {
  // CHECK: train.batch_norm_input_grad: count must be positive
  %0 = train.batch_norm_input_grad %x, %x, %v, %v, %v, %v, %v {epsilon = 0.5 : f32, count = 0 : i64} : (tensor<6x4xf32>, tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
  func.return
}

// -----

func.func @variance(%x: tensor<6x4xf32>, %v: tensor<4xf32>) {
  // CHECK: train.batch_norm_variance: variance has shape [6], expected [4]
  %0 = train.batch_norm_variance %x, %v {count = 6 : i64} : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6xf32>
  func.return
}

// -----

func.func @parts(%x: tensor<6x4xf32>, %v: tensor<4xf32>) {
  // CHECK: train.ghost_batch_norm: 6 samples cannot be 4 equal parts
  %0, %1, %2 = train.ghost_batch_norm %x, %v, %v {groups = 4 : i64, epsilon = 0.5 : f32} : (tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<6x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
  func.return
}

// -----

func.func @statistics(%x: tensor<6x4xf32>, %v: tensor<4xf32>) {
  // CHECK: train.ghost_batch_norm: mean has shape [4], expected [3, 4]
  %0, %1, %2 = train.ghost_batch_norm %x, %v, %v {groups = 3 : i64, epsilon = 0.5 : f32} : (tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>)
  func.return
}
