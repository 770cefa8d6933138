// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

func.func @main(%q: tensor<2x4x8x3xf32>, %k: tensor<2x2x6x3xf32>, %v: tensor<2x2x6x5xf32>, %mask: tensor<8x6xi1>, %dy: tensor<2x4x8x5xf32>) {
  // CHECK: %y, %logsumexp = train.attention %q, %k, %v {is_causal, scale = 5.000000e-01 : f32, softcap = 2.000000e+00 : f32} : (tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>) -> (tensor<2x4x8x5xf32>, tensor<2x4x8xf32>)
  // GENERIC: %y, %logsumexp = "train.attention"(%q, %k, %v) <{is_causal, scale = 5.000000e-01 : f32, softcap = 2.000000e+00 : f32}>
  %y, %logsumexp = train.attention %q, %k, %v {is_causal, scale = 0.5 : f32, softcap = 2.0 : f32} : (tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>) -> (tensor<2x4x8x5xf32>, tensor<2x4x8xf32>)
  // CHECK-NEXT: %dq, %dk, %dv = train.attention_grad %dy, %y, %logsumexp, %q, %k, %v {is_causal, scale = 5.000000e-01 : f32, softcap = 2.000000e+00 : f32}
  %dq, %dk, %dv = train.attention_grad %dy, %y, %logsumexp, %q, %k, %v {is_causal, scale = 0.5 : f32, softcap = 2.0 : f32} : (tensor<2x4x8x5xf32>, tensor<2x4x8x5xf32>, tensor<2x4x8xf32>, tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>) -> (tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>)
  // CHECK-NEXT: %0, %1 = train.attention %q, %k, %v, %mask : (tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>, tensor<8x6xi1>)
  %0, %1 = train.attention %q, %k, %v, %mask : (tensor<2x4x8x3xf32>, tensor<2x2x6x3xf32>, tensor<2x2x6x5xf32>, tensor<8x6xi1>) -> (tensor<2x4x8x5xf32>, tensor<2x4x8xf32>)
  func.return
}

func.func @packed(%q: tensor<2x8x12xf16>, %k: tensor<2x8x6xf16>) {
  // CHECK: %y, %logsumexp = train.attention %q, %k, %k {scope = "h.0", q_num_heads = 4 : i64, kv_num_heads = 2 : i64}
  %y, %logsumexp = train.attention %q, %k, %k {scope = "h.0", q_num_heads = 4 : i64, kv_num_heads = 2 : i64} : (tensor<2x8x12xf16>, tensor<2x8x6xf16>, tensor<2x8x6xf16>) -> (tensor<2x8x12xf16>, tensor<2x4x8xf32>)
  func.return
}
