// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s -p "distribute{t=2 shard=\"a:1=t\",\"b:0=t\"}" | filecheck %s --check-prefix=INNER
// RUN: distir-opt %s -p "distribute{t=2 shard=\"a:0=t\"}" | filecheck %s --check-prefix=ROWS
// RUN: distir-opt %s -p "distribute{t=8 shard=\"a:1=t\"}" | filecheck %s --check-prefix=HALF

// CHECK: train.quantize_blocks %a {recipe = "mxfp8", axis = -1 : i64} : (tensor<6x128xf32>) -> (tensor<6x128x!onnx.element<"float8e4m3fn">>, tensor<6x4x!onnx.element<"float8e8m0">>)
// CHECK: train.block_product
// CHECK: train.quantize_blocks %s, %c {recipe = "nvfp4", axis = 0 : i64, square}

// The sum is over whole blocks on each device: each has two of the four.
// INNER: train.quantize_blocks {{.*}}tensor<6x128xf32, #dist.layout<@mesh, [{}, {t}]>>{{.*}}tensor<6x4x!onnx.element<"float8e8m0">, #dist.layout<@mesh, [{}, {t}]>>
// INNER: train.block_product {{.*}}partial sum {t}

// ROWS: train.block_product {{.*}} -> tensor<6x8xf32, #dist.layout<@mesh, [{t}, {}]>>

// Parts of 16 elements are half blocks, which are gathered before they are rounded.
// HALF: collective.all_gather
// HALF: train.quantize_blocks {{.*}} : (tensor<6x128xf32, #dist.layout<@mesh>>)

device.cluster @box {
  device.kind @gpu on [0 to 8] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {mxfp8 = 1.5e13 : f64, nvfp4 = 3.0e13 : f64, default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 8 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%a: tensor<6x128xf32> {dist.role = "input", dist.name = "a"}, %b: tensor<128x8xf32> {dist.role = "input", dist.name = "b"}, %s: tensor<32x16xf32> {dist.role = "input", dist.name = "s"}, %c: tensor<f32> {dist.role = "input", dist.name = "c"}) -> (tensor<6x8xf32>, tensor<2x1x!onnx.element<"float8e4m3fn">>) {
  %q, %u = train.quantize_blocks %a {recipe = "mxfp8", axis = -1 : i64} : (tensor<6x128xf32>) -> (tensor<6x128x!onnx.element<"float8e4m3fn">>, tensor<6x4x!onnx.element<"float8e8m0">>)
  %r, %v = train.quantize_blocks %b {recipe = "mxfp8", axis = 0 : i64} : (tensor<128x8xf32>) -> (tensor<128x8x!onnx.element<"float8e4m3fn">>, tensor<4x8x!onnx.element<"float8e8m0">>)
  %y = train.block_product %q, %r, %u, %v {recipe = "mxfp8"} : (tensor<6x128x!onnx.element<"float8e4m3fn">>, tensor<128x8x!onnx.element<"float8e4m3fn">>, tensor<6x4x!onnx.element<"float8e8m0">>, tensor<4x8x!onnx.element<"float8e8m0">>) -> tensor<6x8xf32>
  %t, %w = train.quantize_blocks %s, %c {recipe = "nvfp4", axis = 0 : i64, square} : (tensor<32x16xf32>, tensor<f32>) -> (tensor<32x16x!onnx.element<"float4e2m1">>, tensor<2x1x!onnx.element<"float8e4m3fn">>)
  func.return %y, %w : tensor<6x8xf32>, tensor<2x1x!onnx.element<"float8e4m3fn">>
}
