// RUN: distir-opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @main(%x: tensor<5x4x6xf32>, %w: tensor<1x16x6xf32>, %r: tensor<1x16x8xf32>) -> tensor<5x1x4x4xf32> {
  %y = train.gathered_lstm %x, %w, %r {direction = "forward"} : tensor<5x4x6xf32>, tensor<1x16x6xf32>, tensor<1x16x8xf32> -> tensor<5x1x4x4xf32>
  func.return %y : tensor<5x1x4x4xf32>
}

// CHECK: r has the gates of 4 of 8 hidden features; the per-rank form needs `axes`, over which they are split

// -----

func.func @main(%x: tensor<5x4x6xf32>, %w: tensor<1x20x6xf32>, %r: tensor<1x20x8xf32>) -> tensor<5x1x4x5xf32> {
  %y = train.gathered_lstm %x, %w, %r {direction = "forward"} : tensor<5x4x6xf32>, tensor<1x20x6xf32>, tensor<1x20x8xf32> -> tensor<5x1x4x5xf32>
  func.return %y : tensor<5x1x4x5xf32>
}

// CHECK: r has 20 rows, which are not the 4 gates of a part of 8 hidden features

// -----

func.func @main(%x: tensor<5x4x6xf32>, %w: tensor<1x32x6xf32>, %r: tensor<1x32x8xf32>, %h: tensor<1x4x8xf32>) -> tensor<5x1x4x8xf32> {
  %y = train.gathered_lstm %x, %w, %r from %h {direction = "forward"} : tensor<5x4x6xf32>, tensor<1x32x6xf32>, tensor<1x32x8xf32> from tensor<1x4x8xf32> -> tensor<5x1x4x8xf32>
  func.return %y : tensor<5x1x4x8xf32>
}

// CHECK: has 2 states, got 1 first and 0 last ones
