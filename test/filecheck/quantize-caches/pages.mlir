// RUN: distir-opt %s -p "quantize-caches{cache_dtype=int8}" | filecheck %s

// A pool of pages becomes two: the pages of rows, and pages with a scale for each head and
// token. Attention over pages reads what the rows stand for.
// CHECK: %key_quantized: tensor<2x6x3x2x8xi8> {dist.role = "cache", dist.name = "key.quantized"}, %key_scale: tensor<2x6x3x2xf32> {dist.role = "cache", dist.name = "key.scale"}
// CHECK: [[Q:%.*]], [[S:%.*]] = train.quantize_rows %x
// CHECK: [[NQ:%.*]] = train.paged_write %key_quantized, [[Q]], %table, %first
// CHECK: [[NS:%.*]] = train.paged_write %key_scale, [[S]], %table, %first : (tensor<2x6x3x2xf32>, tensor<4x3x1xf32>, tensor<4x3xi64>, tensor<4xi64>) -> tensor<2x6x3x2xf32>
// CHECK: [[K:%.*]] = train.dequantize_rows [[NQ]], [[NS]]
// CHECK: train.paged_attention %q, [[K]], [[K]], %table, %mask
// CHECK: func.return {{.*}}, [[NQ]], [[NS]]

func.func @main(%q: tensor<4x6x1x8xf32> {dist.role = "input", dist.name = "q"}, %x: tensor<4x3x1x8xf32> {dist.role = "input", dist.name = "x"}, %table: tensor<4x3xi64> {dist.role = "input", dist.name = "pages"}, %first: tensor<4xi64> {dist.role = "input", dist.name = "first"}, %mask: tensor<4x1x1x6xf32> {dist.role = "input", dist.name = "mask"}, %key: tensor<2x6x3x2x8xf32> {dist.role = "cache", dist.name = "key"}) -> (tensor<4x6x1x8xf32>, tensor<2x6x3x2x8xf32> {dist.name = "key", dist.updates = "key"}) {
  %new = train.paged_write %key, %x, %table, %first : (tensor<2x6x3x2x8xf32>, tensor<4x3x1x8xf32>, tensor<4x3xi64>, tensor<4xi64>) -> tensor<2x6x3x2x8xf32>
  %y = train.paged_attention %q, %new, %new, %table, %mask : (tensor<4x6x1x8xf32>, tensor<2x6x3x2x8xf32>, tensor<2x6x3x2x8xf32>, tensor<4x3xi64>, tensor<4x1x1x6xf32>) -> tensor<4x6x1x8xf32>
  func.return %y, %new : tensor<4x6x1x8xf32>, tensor<2x6x3x2x8xf32>
}
