// RUN: distir-opt %s -p "raise-patterns" | filecheck %s

// Attention over pages stays as it is where one op would compute something else: with a
// soft cap, a mask for each head, or keys and values of different tables.

// CHECK-NOT: train.paged_attention
// CHECK: onnx.Attention(%q, %k, %v, %mask) {softcap = 2.000000e+00 : f32}
// CHECK: onnx.Attention(%q, %k, %v, %per_head)
// CHECK: onnx.Attention(%q, %k, %others, %mask)
// CHECK-NOT: train.paged_attention

func.func @main(%keys: tensor<1x6x2x2x4xf32>, %values: tensor<1x6x2x2x4xf32>, %table: tensor<2x3xi64>, %other: tensor<2x3xi64>, %q: tensor<2x2x1x4xf32>, %mask: tensor<2x1x1x6xf32>, %per_head: tensor<2x2x1x6xf32>) -> (tensor<2x2x1x4xf32>, tensor<2x2x1x4xf32>, tensor<2x2x1x4xf32>) {
  %k = train.paged_read %keys, %table : (tensor<1x6x2x2x4xf32>, tensor<2x3xi64>) -> tensor<2x2x6x4xf32>
  %v = train.paged_read %values, %table : (tensor<1x6x2x2x4xf32>, tensor<2x3xi64>) -> tensor<2x2x6x4xf32>
  %others = train.paged_read %values, %other : (tensor<1x6x2x2x4xf32>, tensor<2x3xi64>) -> tensor<2x2x6x4xf32>
  %a = onnx.Attention(%q, %k, %v, %mask) {softcap = 2.0 : f32} : (tensor<2x2x1x4xf32>, tensor<2x2x6x4xf32>, tensor<2x2x6x4xf32>, tensor<2x1x1x6xf32>) -> tensor<2x2x1x4xf32>
  %b = onnx.Attention(%q, %k, %v, %per_head) : (tensor<2x2x1x4xf32>, tensor<2x2x6x4xf32>, tensor<2x2x6x4xf32>, tensor<2x2x1x6xf32>) -> tensor<2x2x1x4xf32>
  %c = onnx.Attention(%q, %k, %others, %mask) : (tensor<2x2x1x4xf32>, tensor<2x2x6x4xf32>, tensor<2x2x6x4xf32>, tensor<2x1x1x6xf32>) -> tensor<2x2x1x4xf32>
  func.return %a, %b, %c : tensor<2x2x1x4xf32>, tensor<2x2x1x4xf32>, tensor<2x2x1x4xf32>
}
