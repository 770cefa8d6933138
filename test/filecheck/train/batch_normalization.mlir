// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

func.func @main(%x: tensor<4x6x2xf16>, %v: tensor<6xf32>) {
  // CHECK: %dscale, %dbias = train.batch_norm_sums %x, %x, %v, %v {epsilon = 5.000000e-01 : f32} : (tensor<4x6x2xf16>, tensor<4x6x2xf16>, tensor<6xf32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
  // GENERIC: %dscale, %dbias = "train.batch_norm_sums"(%x, %x, %v, %v) <{epsilon = 5.000000e-01 : f32}>
  %dscale, %dbias = train.batch_norm_sums %x, %x, %v, %v {epsilon = 0.5 : f32} : (tensor<4x6x2xf16>, tensor<4x6x2xf16>, tensor<6xf32>, tensor<6xf32>) -> (tensor<6xf32>, tensor<6xf32>)
  // CHECK-NEXT: %dx = train.batch_norm_input_grad %x, %x, %v, %v, %v, %dscale, %dbias {epsilon = 5.000000e-01 : f32, count = 8 : i64}
  %dx = train.batch_norm_input_grad %x, %x, %v, %v, %v, %dscale, %dbias {epsilon = 0.5 : f32, count = 8 : i64} : (tensor<4x6x2xf16>, tensor<4x6x2xf16>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<4x6x2xf16>
  // CHECK-NEXT: %variance = train.batch_norm_variance %x, %v {count = 8 : i64} : (tensor<4x6x2xf16>, tensor<6xf32>) -> tensor<6xf32>
  %variance = train.batch_norm_variance %x, %v {count = 8 : i64} : (tensor<4x6x2xf16>, tensor<6xf32>) -> tensor<6xf32>
  // CHECK-NEXT: %y, %mean, %inverse = train.ghost_batch_norm %x, %v, %v {groups = 2 : i64, epsilon = 5.000000e-01 : f32} : (tensor<4x6x2xf16>, tensor<6xf32>, tensor<6xf32>) -> (tensor<4x6x2xf16>, tensor<2x6xf32>, tensor<2x6xf32>)
  %y, %mean, %inverse = train.ghost_batch_norm %x, %v, %v {groups = 2 : i64, epsilon = 0.5 : f32} : (tensor<4x6x2xf16>, tensor<6xf32>, tensor<6xf32>) -> (tensor<4x6x2xf16>, tensor<2x6xf32>, tensor<2x6xf32>)
  // CHECK-NEXT: train.ghost_batch_norm_grad %y, %x, %v, %mean, %inverse {groups = 2 : i64, epsilon = 5.000000e-01 : f32}
  %dghost, %dv, %du = train.ghost_batch_norm_grad %y, %x, %v, %mean, %inverse {groups = 2 : i64, epsilon = 0.5 : f32} : (tensor<4x6x2xf16>, tensor<4x6x2xf16>, tensor<6xf32>, tensor<2x6xf32>, tensor<2x6xf32>) -> (tensor<4x6x2xf16>, tensor<6xf32>, tensor<6xf32>)
  func.return
}
