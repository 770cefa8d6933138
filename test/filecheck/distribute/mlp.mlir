// RUN: distir-opt %s -p "distribute{d=2 t=2}" | filecheck %s
// RUN: distir-opt %s --pass-pipeline="builtin.module(distribute{t=2 shard=\"w1:0=t\"})" | filecheck %s --check-prefix=SHARD
// RUN: not distir-opt %s -p "distribute{d=4 t=2}" 2>&1 | filecheck %s --check-prefix=LARGE
// RUN: not distir-opt %s -p "distribute{d=3}" 2>&1 | filecheck %s --check-prefix=UNEVEN
// RUN: not distir-opt %s -p "distribute{t=2 shard=\"w9:0=t\"}" 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not distir-opt %s -p "distribute{t=2 shard=\"w1:0=q\"}" 2>&1 | filecheck %s --check-prefix=AXIS

// Data and tensor parallelism in one step: the batch over "d", columns and then rows of
// the matrices over "t", and one all-reduce where the rows' products are terms of a sum.

// CHECK: device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
// CHECK: onnx.MatMul(%x, %w1) : ({{.*}}) -> tensor<8x128xf32, #dist.layout<@mesh, [{d}, {t}]>>
// CHECK: onnx.Relu
// CHECK: %y = onnx.MatMul(%a, %w2) : ({{.*}}) -> tensor<8x64xf32, #dist.layout<@mesh, [{d}, {}], partial sum {t}>>
// CHECK: %[[SUM:.*]] = collective.all_reduce %y over [t]
// CHECK: func.return %[[SUM]] : tensor<8x64xf32, #dist.layout<@mesh, [{d}, {}]>>

// A user's split wins: rows of w1, so the input is cut to match.
// SHARD: %w1: tensor<64x128xf32, #dist.layout<@mesh, [{t}, {}]>>
// SHARD: collective.slice %x over [t]

// LARGE: error: distribute: d=4 x t=2 needs 8 devices, but cluster @box has 4
// UNEVEN: error: data-parallel: the batch of 8 (dimension 0 of input 'x') cannot be split evenly over axis 'd' of size 3
// NAME: error: no argument is called 'w9'; the program has x, w1, w2
// AXIS: error: mesh @mesh has no axis 'q' (axes: t)

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x64xf32> {dist.role = "input"}, %w1: tensor<64x128xf32> {dist.role = "parameter"}, %w2: tensor<128x64xf32> {dist.role = "parameter"}) -> tensor<8x64xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x64xf32>, tensor<64x128xf32>) -> tensor<8x128xf32>
  %a = onnx.Relu(%h) : (tensor<8x128xf32>) -> tensor<8x128xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<8x128xf32>, tensor<128x64xf32>) -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}
