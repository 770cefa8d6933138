// RUN: distir-opt %s -p "auto-parallel{jobs=1}" | filecheck %s
// RUN: distir-opt %s -p 'auto-parallel{jobs=1 buckets=false shard="w1:1=t"}' | filecheck %s --check-prefix=SHARD
// RUN: distir-opt %s -p 'auto-parallel{jobs=1 whole="w1","w2","x"}' | filecheck %s --check-prefix=WHOLE
// RUN: sed s/32000000000/1000/ %s | not distir-opt -p "auto-parallel{jobs=1}" 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not distir-opt %s -p "auto-parallel{jobs=1 zero=1}" 2>&1 | filecheck %s --check-prefix=ZERO

// The grid and searched layouts agree: the batch is split, which needs no communication. Of
// plans that come to the same the simplest is taken.

// CHECK: dist.notes = ["auto-parallel chose batch=64 d=4 t=1 p=1 k=1, the fastest of {{.*}} that fit of {{.*}} plans judged by simulation: {{.*}} s a step, {{.*}}; no plan for this batch takes less than
// CHECK: device.mesh @mesh on @box <d = 4> [0 to 4]
// CHECK-NOT: collective

// With the columns of the first matrix split, searched layouts are faster than the grid's
// column and row: the batch is split over both axes, and the matrix is gathered. There is a
// bound where each tensor is a message.
// SHARD: chose batch=64 layouts searched over d=2,t=2 no-buckets,
// SHARD-SAME: no layouts of that mesh take less than
// SHARD: %w1: tensor<64x128xf32, #dist.layout<@mesh, [{}, {t}]>>

// WHOLE: %x: tensor<64x64xf32, #dist.layout<@mesh>>

// NONE: error: auto-parallel: none of the {{.*}} possible configurations fits: the one that needs the least, batch=64 {{.*}} Most is taken by activations ({{.*}} GB), parameters
// NONE-SAME: Less will do for batch=64 layouts searched over {{.*}}: search-sharding: no layouts fit into 1000 bytes per device; {{.*}} bytes would do

// ZERO: error: auto-parallel: ZeRO, activation checkpointing and offloading are for training steps

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<64x64xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<64x128xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<128x64xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<64x64xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<64x64xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
  %a = onnx.Relu(%h) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
