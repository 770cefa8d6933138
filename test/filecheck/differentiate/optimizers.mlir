// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=muon state-dtype=int8}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=adafactor state-dtype=bf16}" | filecheck %s --check-prefix=FACTOR
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=lamb state-dtype=bf16}" | filecheck %s --check-prefix=LAMB
// RUN: not distir-opt %s -p "differentiate{loss=mse optimizer=muon by-adamw=v}" 2>&1 | filecheck %s --check-prefix=NAME

// The momentum has a code for each element and a scale for each block of 64.

// CHECK: %w_momentum: tensor<128x64xui8>
// CHECK-SAME: %w_momentum_scale: tensor<128x1xf32>
// CHECK: train.dequantize_state %w_momentum, %w_momentum_scale {block = 64 : i64, signed} : (tensor<128x64xui8>, tensor<128x1xf32>) -> tensor<128x64xf32>
// CHECK-NEXT: train.muon_momentum
// CHECK-NEXT: train.quantize_state
// CHECK-NEXT: onnx.Cast
// CHECK-NEXT: train.orthogonalize {{.*}} -> tensor<128x64xbf16>
// CHECK-NEXT: train.muon %w

// The states of rows and columns are small and stay wide.

// FACTOR: %w_row_var: tensor<128x1xf32>
// FACTOR-SAME: %w_col_var: tensor<1x64xf32>
// FACTOR: train.factor_sums
// FACTOR: train.adafactor

// LAMB: %w_exp_avg: tensor<128x64xbf16>
// LAMB: train.lamb_direction
// LAMB: train.square_sum
// LAMB: train.square_sum
// LAMB: train.lamb

// NAME: by_adamw: no parameter that is trained is called 'v'

func.func @main(%x: tensor<4x128xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<128x64xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<4x64xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<4x128xf32>, tensor<128x64xf32>) -> tensor<4x64xf32>
  func.return %y : tensor<4x64xf32>
}
