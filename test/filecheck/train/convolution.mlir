// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @main(%x: tensor<2x4x6x6xf32>, %w: tensor<6x2x3x3xf32>, %dy: tensor<2x6x3x3xf32>, %dp: tensor<2x4x3x3xf32>) -> tensor<2x4x6x6xf32> {
  // CHECK: %dx = train.conv_grad_input %dy, %w {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 2 : i64} : (tensor<2x6x3x3xf32>, tensor<6x2x3x3xf32>) -> tensor<2x4x6x6xf32>
  %dx = train.conv_grad_input %dy, %w {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 2 : i64} : (tensor<2x6x3x3xf32>, tensor<6x2x3x3xf32>) -> tensor<2x4x6x6xf32>
  // CHECK: %dw = train.conv_grad_weight %x, %dy {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 2 : i64} : (tensor<2x4x6x6xf32>, tensor<2x6x3x3xf32>) -> tensor<6x2x3x3xf32>
  %dw = train.conv_grad_weight %x, %dy {strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 2 : i64} : (tensor<2x4x6x6xf32>, tensor<2x6x3x3xf32>) -> tensor<6x2x3x3xf32>
  // CHECK: %dm = train.max_pool_grad %dp, %x {kernel_shape = array<i64: 3, 3>, strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>} : (tensor<2x4x3x3xf32>, tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
  %dm = train.max_pool_grad %dp, %x {kernel_shape = array<i64: 3, 3>, strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>} : (tensor<2x4x3x3xf32>, tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
  // CHECK: %da = train.average_pool_grad %dp {kernel_shape = array<i64: 2, 2>, strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, count_include_pad} : (tensor<2x4x3x3xf32>) -> tensor<2x4x6x6xf32>
  %da = train.average_pool_grad %dp {kernel_shape = array<i64: 2, 2>, strides = array<i64: 2, 2>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, count_include_pad} : (tensor<2x4x3x3xf32>) -> tensor<2x4x6x6xf32>
  %y = onnx.Sum(%dx, %dm, %da) : (tensor<2x4x6x6xf32>, tensor<2x4x6x6xf32>, tensor<2x4x6x6xf32>) -> tensor<2x4x6x6xf32>
  func.return %y : tensor<2x4x6x6xf32>
}
