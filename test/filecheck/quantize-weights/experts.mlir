// RUN: distir-opt %s -p "quantize-weights{weights_dtype=int8}" | filecheck %s
// RUN: distir-opt %s -p "quantize-weights{weights_dtype=int4 weights_group=2}" | filecheck %s --check-prefix=GROUP
// RUN: not distir-opt %s -p "quantize-weights{weights_dtype=int4 weights_group=6}" 2>&1 | filecheck %s --check-prefix=GROUPS

// Matrices of experts [experts, inputs, outputs] become [experts, outputs, inputs], so that
// their rows are along the inputs, as those of other matrices are.
// CHECK: %up_quantized: tensor<3x6x8xi8> {dist.role = "parameter", dist.name = "up.quantized"}, %up_scale: tensor<3x6xf32> {dist.role = "parameter", dist.name = "up.scale"}
// CHECK-SAME: %down_quantized: tensor<3x2x6xi8> {{.*}}, %down_scale: tensor<3x2xf32>
// CHECK: [[U:%.*]] = train.dequantize_rows %up_quantized, %up_scale : (tensor<3x6x8xi8>, tensor<3x6xf32>) -> tensor<3x6x8xf32>
// CHECK: [[H:%.*]] = train.grouped_product %x, %rows, [[U]] {taken = 2 : i64, transposed}
// CHECK: [[D:%.*]] = train.dequantize_rows %down_quantized, %down_scale
// CHECK: train.grouped_product [[H]], %rows, [[D]] {transposed}

// GROUP: %up_quantized: tensor<3x6x4xui8> {{.*}}, %up_scale: tensor<3x6x4xf32> {{.*}}, %up_zero: tensor<3x6x4xui8>
// GROUPS: error: quantize-weights: the rows of 'up' have 8 weights, which groups of 6 do not divide evenly
// GROUP: [[U:%.*]] = train.dequantize_groups %up_quantized, %up_scale, %up_zero : (tensor<3x6x4xui8>, tensor<3x6x4xf32>, tensor<3x6x4xui8>) -> tensor<3x6x8xf32>
// GROUP: train.grouped_product %x, %rows, [[U]] {taken = 2 : i64, transposed}

func.func @main(%x: tensor<1x5x2x8xf32> {dist.role = "input", dist.name = "x"}, %rows: tensor<1x5x2xi64> {dist.role = "input", dist.name = "rows"}, %up: tensor<3x8x6xf32> {dist.role = "parameter", dist.name = "up"}, %down: tensor<3x2x6xf32> {dist.role = "parameter", dist.name = "down"}) -> tensor<1x5x2x2xf32> {
  %h = train.grouped_product %x, %rows, %up {taken = 2 : i64} : (tensor<1x5x2x8xf32>, tensor<1x5x2xi64>, tensor<3x8x6xf32>) -> tensor<1x5x2x6xf32>
  %y = train.grouped_product %h, %rows, %down {transposed} : (tensor<1x5x2x6xf32>, tensor<1x5x2xi64>, tensor<3x2x6xf32>) -> tensor<1x5x2x2xf32>
  func.return %y : tensor<1x5x2x2xf32>
}
