// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @size(%w: tensor<6x4x3x3xf32>, %dy: tensor<2x6x3x3xf32>) {
  // CHECK: train.conv_grad_input: dimension 2 has size 3 after windows moved over it, expected 4
  %dx = train.conv_grad_input %dy, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, group = 1 : i64} : (tensor<2x6x3x3xf32>, tensor<6x4x3x3xf32>) -> tensor<2x4x6x5xf32>
  func.return
}

// -----

func.func @groups(%w: tensor<6x4x3x3xf32>, %dy: tensor<2x6x3x3xf32>) {
  // CHECK: train.conv_grad_input: 6 output channels do not make 4 groups
  %dx = train.conv_grad_input %dy, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, group = 4 : i64} : (tensor<2x6x3x3xf32>, tensor<6x4x3x3xf32>) -> tensor<2x4x5x5xf32>
  func.return
}

// -----

func.func @weight(%x: tensor<2x4x5x5xf32>, %dy: tensor<2x6x3x3xf32>) {
  // CHECK: train.conv_grad_weight: weight has shape [6, 4, 3, 3], expected [6, 2, 3, 3]
  %dw = train.conv_grad_weight %x, %dy {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, group = 2 : i64} : (tensor<2x4x5x5xf32>, tensor<2x6x3x3xf32>) -> tensor<6x4x3x3xf32>
  func.return
}

// -----

func.func @strides(%x: tensor<2x4x6x6xf32>, %dy: tensor<2x4x3x3xf32>) {
  // CHECK: train.max_pool_grad: strides must be 2 numbers of at least 1
  %dx = train.max_pool_grad %dy, %x {kernel_shape = array<i64: 2, 2>, strides = array<i64: 2, 0>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>} : (tensor<2x4x3x3xf32>, tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
  func.return
}

// -----

func.func @rank(%dy: tensor<2x4x3xf32>) {
  // CHECK: train.average_pool_grad: a window of 2 dimensions needs tensors of 4, got 3 and 3
  %dx = train.average_pool_grad %dy {kernel_shape = array<i64: 2, 2>, strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>} : (tensor<2x4x3xf32>) -> tensor<2x4x6xf32>
  func.return
}
