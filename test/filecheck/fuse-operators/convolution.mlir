// RUN: distir-opt %s -p fuse-operators | filecheck %s
// RUN: distir-opt %s -t torch | filecheck %s --check-prefix TORCH

// Both gradients of a convolution are one call.

func.func @main(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x3x3xf32>, %dy: tensor<2x4x8x8xf32>) -> (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) {
  %dx = train.conv_grad_input %dy, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 1 : i64} : (tensor<2x4x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<2x3x8x8xf32>
  %dw = train.conv_grad_weight %x, %dy {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 1 : i64} : (tensor<2x3x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<4x3x3x3xf32>
  func.return %dx, %dw : tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %dx, %dw = torch.conv_grad %x, %w, %dy
// CHECK-NEXT:   func.return %dx, %dw
// TORCH:      dx, dw = convolution_gradients.conv_grad(x, w, dy, (1, 1), (1, 1), ((1, 1), (1, 1)), 1)

// Not where the input of the one is made of the result of the other.

func.func @after(%w: tensor<3x3x3x3xf32>, %dy: tensor<2x3x8x8xf32>) -> tensor<3x3x3x3xf32> {
  %dx = train.conv_grad_input %dy, %w {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 1 : i64} : (tensor<2x3x8x8xf32>, tensor<3x3x3x3xf32>) -> tensor<2x3x8x8xf32>
  %dw = train.conv_grad_weight %dx, %dy {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 1 : i64} : (tensor<2x3x8x8xf32>, tensor<2x3x8x8xf32>) -> tensor<3x3x3x3xf32>
  func.return %dw : tensor<3x3x3x3xf32>
}

// CHECK:      func.func @after
// CHECK-NEXT:   train.conv_grad_input
// CHECK-NEXT:   train.conv_grad_weight
