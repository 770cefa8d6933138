// RUN: distir-opt %s -p "quantize-weights{weights_dtype=int8}" | filecheck %s
// RUN: distir-opt %s -p "quantize-weights{weights_dtype=int4 weights_group=4}" | filecheck %s --check-prefix=GROUP
// RUN: distir-opt %s -p "quantize-weights{weights_dtype=fp8}" | filecheck %s --check-prefix=FLOAT
// RUN: not distir-opt %s -p "quantize-weights{weights_dtype=int4 weights_group=6}" 2>&1 | filecheck %s --check-prefix=GROUPS
// RUN: not distir-opt %s -p "quantize-weights{weights_dtype=int2}" 2>&1 | filecheck %s --check-prefix=FORMAT

// A product with a parameter; the head and the table stay as they are. New keys are results
// too, which do not make a product the head.
// CHECK: %w1_quantized: tensor<6x8xi8> {dist.role = "parameter", dist.name = "w1.quantized"}, %w1_scale: tensor<6xf32> {dist.role = "parameter", dist.name = "w1.scale"}
// CHECK-SAME: %w2: tensor<6x2xf32>
// CHECK: [[H:%.*]] = train.quantized_linear %x, %w1_quantized, %w1_scale {scope = "up"}
// CHECK: onnx.MatMul([[H]], %w2)

// GROUP: %w1_quantized: tensor<6x4xui8> {{.*}}, %w1_scale: tensor<6x2xf32> {{.*}}, %w1_zero: tensor<6x2xui8>
// GROUP: train.group_quantized_linear %x, %w1_quantized, %w1_scale, %w1_zero

// FLOAT: %w1_quantized: tensor<6x8x!onnx.element<"float8e4m3fn">>

// GROUPS: error: quantize-weights: the rows of 'w1' have 8 weights, which groups of 6 do not divide evenly, two to a byte; choose another size (weights_group)
// FORMAT: error: quantize-weights: there is no weight format 'int2'; choose one of int8, fp8, int4

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<6x8xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<6x2xf32> {dist.role = "parameter", dist.name = "w2"}, %k: tensor<4x6xf32> {dist.role = "cache", dist.name = "k"}) -> (tensor<4x2xf32>, tensor<4x6xf32> {dist.name = "k", dist.updates = "k"}) {
  %t = onnx.Transpose(%w1) {perm = [1 : i64, 0 : i64]} : (tensor<6x8xf32>) -> tensor<8x6xf32>
  %h = onnx.MatMul(%x, %t) {scope = "up"} : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %n = onnx.Add(%h, %k) : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  %y = onnx.MatMul(%h, %w2) {scope = "head"} : (tensor<4x6xf32>, tensor<6x2xf32>) -> tensor<4x2xf32>
  func.return %y, %n : tensor<4x2xf32>, tensor<4x6xf32>
}
