// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @main(%q: tensor<2x4x8x3xf32>, %k: tensor<2x2x6x3xf32>, %v: tensor<2x2x6x5xf32>, %mask: tensor<8x6xf32>, %dy: tensor<2x4x8x5xf32>, %n: tensor<i64>) {
  // CHECK: %y, %logsumexp = train.dropped_attention %q, %k, %v mask %mask, %n {ratio = 2.500000e-01 : f64, seed = 7 : i64, stream = 1 : i64, scale = 5.000000e-01 : f32} : tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32> mask tensor<8x6xf32>, tensor<i64> -> tensor<2x4x8x5xf32>, tensor<2x4x8xf32>
  %y, %logsumexp = train.dropped_attention %q, %k, %v mask %mask, %n {ratio = 0.25 : f64, seed = 7 : i64, stream = 1 : i64, scale = 0.5 : f32} : tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32> mask tensor<8x6xf32>, tensor<i64> -> tensor<2x4x8x5xf32>, tensor<2x4x8xf32>
  // CHECK-NEXT: %dq, %dk, %dv = train.dropped_attention_grad %dy, %y, %logsumexp, %q, %k, %v mask %mask, %n
  %dq, %dk, %dv = train.dropped_attention_grad %dy, %y, %logsumexp, %q, %k, %v mask %mask, %n {ratio = 0.25 : f64, seed = 7 : i64, stream = 1 : i64, scale = 0.5 : f32} : tensor<2x4x8x5xf32>, tensor<2x4x8x5xf32>, tensor<2x4x8xf32>, tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32> mask tensor<8x6xf32>, tensor<i64> -> tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>
  // One device of two, between which eight heads are divided.
  // CHECK: train.dropped_attention %q, %k, %v, %n at(%n) {ratio = 2.500000e-01 : f64, seed = 7 : i64, stream = 1 : i64, global_shape = array<i64: 2, 8, 8, 6>, splits = [array<i64: 1, 2, 4>]}
  %0, %1 = train.dropped_attention %q, %k, %v, %n at (%n) {ratio = 0.25 : f64, seed = 7 : i64, stream = 1 : i64, global_shape = array<i64: 2, 8, 8, 6>, splits = [array<i64: 1, 2, 4>]} : tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>, tensor<i64> at (tensor<i64>) -> tensor<2x4x8x5xf32>, tensor<2x4x8xf32>
  func.return
}
