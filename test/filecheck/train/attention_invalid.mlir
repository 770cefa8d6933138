// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @rank(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention_grad: dy has 3 dimensions, expected 4
  %0, %1, %2 = train.attention_grad %x, %x, %x, %x : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @heads(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention_grad: give q_num_heads and kv_num_heads together, or neither
  %0, %1, %2 = train.attention_grad %x, %x, %x, %x {q_num_heads = 2 : i64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @no_heads(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention_grad: the numbers of heads must be positive
  %0, %1, %2 = train.attention_grad %x, %x, %x, %x {q_num_heads = 0 : i64, kv_num_heads = 2 : i64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @width(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention_grad: dy has shape [2, 4, 8], expected [2, 4, 6]
  %0, %1, %2 = train.attention_grad %x, %x, %x, %x {q_num_heads = 3 : i64, kv_num_heads = 3 : i64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @sharing(%x: tensor<2x4x5x8xf32>, %k: tensor<2x3x5x8xf32>) {
  // CHECK: train.attention_grad: 4 query heads cannot share 3 key heads
  %0, %1, %2 = train.attention_grad %x, %x, %k, %k : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x3x5x8xf32>, tensor<2x3x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<2x3x5x8xf32>, tensor<2x3x5x8xf32>)
  func.return
}

// -----

func.func @mask(%x: tensor<2x4x5x8xf32>, %m: tensor<3x5xi1>) {
  // CHECK: train.attention_grad: mask has shape [3, 5], which does not broadcast to [2, 4, 5, 5]
  %0, %1, %2 = train.attention_grad %x, %x, %x, %x, %m : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<3x5xi1>) -> (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>)
  func.return
}
