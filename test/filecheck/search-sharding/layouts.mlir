// RUN: distir-opt %s -p 'search-sharding{axes="t=4"}' | filecheck %s
// RUN: sed s/8x/4096x/g %s | distir-opt -p 'search-sharding{axes="t=4"}' | filecheck %s --check-prefix=BATCH
// RUN: distir-opt %s -p 'search-sharding{axes="t=4" whole=w1}' | filecheck %s --check-prefix=WHOLE
// RUN: distir-opt %s -p 'search-sharding{axes="t=4" shard="w1:0=t"}' | filecheck %s --check-prefix=ROWS
// RUN: distir-opt %s -p 'search-sharding{axes="t=4" level=O2}' | filecheck %s

// For eight rows reading the weights is the work. The first is split by columns and the
// second by rows, which needs one reduction at the end: it leaves each device the rows of its
// own, as nobody asks for all.

// CHECK: dist.notes = ["search-sharding: {{.*}} s of work and communication, at most 0 % above the best
// CHECK: %w1: tensor<1024x4096xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK-SAME: %w2: tensor<4096x1024xf32, #dist.layout<@mesh, [{t}, {}]>>
// CHECK: onnx.MatMul
// CHECK-NEXT: onnx.Relu
// CHECK-NEXT: onnx.MatMul
// CHECK-NEXT: collective.reduce_scatter %{{.*}} over [t]
// CHECK-NEXT: func.return

// For thousands of rows these are split, and nothing is communicated.
// BATCH: %w1: tensor<1024x4096xf32, #dist.layout<@mesh>>
// BATCH-SAME: %w2: tensor<4096x1024xf32, #dist.layout<@mesh>>
// BATCH-NOT: collective

// Arguments can be kept from being split, and can be given a layout.
// WHOLE: %w1: tensor<1024x4096xf32, #dist.layout<@mesh>>
// ROWS: %w1: tensor<1024x4096xf32, #dist.layout<@mesh, [{t}, {}]>>

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 1.0e-6 : f64}
}
func.func @main(%x: tensor<8x1024xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<1024x4096xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<4096x1024xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x1024xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x1024xf32>, tensor<1024x4096xf32>) -> tensor<8x4096xf32>
  %a = onnx.Relu(%h) : (tensor<8x4096xf32>) -> tensor<8x4096xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<8x4096xf32>, tensor<4096x1024xf32>) -> tensor<8x1024xf32>
  func.return %y : tensor<8x1024xf32>
}
