// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s -p "raise-patterns" | filecheck %s --check-prefix=RAISED

// Two pools of six pages of two tokens each, shared by two sequences each.
func.func @main(%pool: tensor<2x6x3x2x8xf32>, %values: tensor<2x6x3x2x4xf32>, %new: tensor<4x3x5x8xf32>, %table: tensor<4x3xi64>, %first: tensor<4xi64>, %q: tensor<4x6x1x8xf32>, %mask: tensor<4x1x1x6xf32>) -> (tensor<4x6x1x4xf32>, tensor<4x6x1x4xf32>) {
  // CHECK: %written = train.paged_write %pool, %new, %table, %first : (tensor<2x6x3x2x8xf32>, tensor<4x3x5x8xf32>, tensor<4x3xi64>, tensor<4xi64>) -> tensor<2x6x3x2x8xf32>
  // CHECK-NEXT: %y = train.paged_attention %q, %written, %values, %table, %mask {scale = 2.500000e-01 : f32} : (tensor<4x6x1x8xf32>, tensor<2x6x3x2x8xf32>, tensor<2x6x3x2x4xf32>, tensor<4x3xi64>, tensor<4x1x1x6xf32>) -> tensor<4x6x1x4xf32>
  // CHECK-NEXT: %k = train.paged_read %written, %table : (tensor<2x6x3x2x8xf32>, tensor<4x3xi64>) -> tensor<4x3x6x8xf32>
  %written = train.paged_write %pool, %new, %table, %first : (tensor<2x6x3x2x8xf32>, tensor<4x3x5x8xf32>, tensor<4x3xi64>, tensor<4xi64>) -> tensor<2x6x3x2x8xf32>
  %y = train.paged_attention %q, %written, %values, %table, %mask {scale = 0.25 : f32} : (tensor<4x6x1x8xf32>, tensor<2x6x3x2x8xf32>, tensor<2x6x3x2x4xf32>, tensor<4x3xi64>, tensor<4x1x1x6xf32>) -> tensor<4x6x1x4xf32>
  %k = train.paged_read %written, %table : (tensor<2x6x3x2x8xf32>, tensor<4x3xi64>) -> tensor<4x3x6x8xf32>
  %v = train.paged_read %values, %table : (tensor<2x6x3x2x4xf32>, tensor<4x3xi64>) -> tensor<4x3x6x4xf32>
  // Attention over pages that are read in order becomes attention over pages.
  // RAISED: train.paged_attention %q, %written, %values, %table, %mask {scale = 2.500000e-01 : f32}
  // RAISED-NEXT: %z = train.paged_attention %q, %written, %values, %table, %mask {scope = "attn"}
  // RAISED-NEXT: func.return
  %z = onnx.Attention(%q, %k, %v, %mask) {scope = "attn"} : (tensor<4x6x1x8xf32>, tensor<4x3x6x8xf32>, tensor<4x3x6x4xf32>, tensor<4x1x1x6xf32>) -> tensor<4x6x1x4xf32>
  func.return %y, %z : tensor<4x6x1x4xf32>, tensor<4x6x1x4xf32>
}
