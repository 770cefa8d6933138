// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @rank(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention: q has 3 dimensions, expected 4
  %0, %1 = train.attention %x, %x, %x : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @heads(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention: give q_num_heads and kv_num_heads together, or neither
  %0, %1 = train.attention %x, %x, %x {q_num_heads = 2 : i64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @no_heads(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention: the numbers of heads must be positive
  %0, %1 = train.attention %x, %x, %x {q_num_heads = 0 : i64, kv_num_heads = 2 : i64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @width(%x: tensor<2x4x8xf32>) {
  // CHECK: train.attention: q has shape [2, 4, 8], expected [2, 4, 6]
  %0, %1 = train.attention %x, %x, %x {q_num_heads = 3 : i64, kv_num_heads = 3 : i64} : (tensor<2x4x8xf32>, tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> (tensor<2x4x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @cap(%x: tensor<2x4x5x8xf32>) {
  // CHECK: train.attention: softcap is -1.0, expected a positive number
  %0, %1 = train.attention %x, %x, %x {softcap = -1.0 : f32} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>)
  func.return
}

// -----

func.func @sharing(%x: tensor<2x4x5x8xf32>, %k: tensor<2x3x5x8xf32>) {
  // CHECK: train.attention: 4 query heads cannot share 3 key heads
  %0, %1 = train.attention %x, %k, %k : (tensor<2x4x5x8xf32>, tensor<2x3x5x8xf32>, tensor<2x3x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<2x4x5xf32>)
  func.return
}

// -----

func.func @mask(%x: tensor<2x4x5x8xf32>, %m: tensor<3x5xi1>) {
  // CHECK: train.attention: mask has shape [3, 5], which does not broadcast to [2, 4, 5, 5]
  %0, %1 = train.attention %x, %x, %x, %m : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<3x5xi1>) -> (tensor<2x4x5x8xf32>, tensor<2x4x5xf32>)
  func.return
}

// -----

func.func @sums(%x: tensor<2x4x5x8xf32>) {
  // CHECK: train.attention: logsumexp has shape [2, 4, 8], expected [2, 4, 5]
  %0, %1 = train.attention %x, %x, %x : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<2x4x8xf32>)
  func.return
}

// -----

func.func @gradient(%x: tensor<2x4x5x8xf32>, %s: tensor<2x4x5xf32>, %dy: tensor<2x4x5x7xf32>) {
  // CHECK: train.attention_grad: dy has shape [2, 4, 5, 7], expected [2, 4, 5, 8]
  %0, %1, %2 = train.attention_grad %dy, %x, %s, %x, %x, %x : (tensor<2x4x5x7xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>)
  func.return
}

// -----

func.func @runs(%x: tensor<2x4x6x8xf32>) {
  // CHECK: train.attention: 6 queries are not 2 equal blocks in runs of 0
  %0, %1 = train.attention %x, %x, %x {blocks = 2 : i64, run = 0 : i64} : (tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>, tensor<2x4x6x8xf32>) -> (tensor<2x4x6x8xf32>, tensor<2x4x6xf32>)
  func.return
}

// -----

func.func @blocks(%x: tensor<2x4x5x8xf32>) {
  // CHECK: train.attention: 5 queries are not 2 equal blocks
  %0, %1 = train.attention %x, %x, %x {blocks = 2 : i64} : (tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>, tensor<2x4x5x8xf32>) -> (tensor<2x4x5x8xf32>, tensor<2x4x5xf32>)
  func.return
}
