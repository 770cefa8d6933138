// RUN: distir-opt %s -p "search-grid{jobs=1}" | filecheck %s
// RUN: distir-opt %s -p "search-grid{jobs=1 world-size=2 micro-batches=2,4}" | filecheck %s --check-prefix=PAIR
// RUN: sed s/32000000000/60000/ %s | distir-opt -p "search-grid{jobs=1}" | filecheck %s --check-prefix=SMALL
// RUN: sed s/32000000000/1000/ %s | not distir-opt -p "search-grid{jobs=1}" 2>&1 | filecheck %s --check-prefix=NONE
// RUN: distir-opt %s -p "search-grid{jobs=1 world-size=2 micro-batches=2,4 overlap=off,on}" | filecheck %s --check-prefix=OVERLAP
// RUN: distir-opt %s -p "search-grid{jobs=1 buckets=false}" | filecheck %s --check-prefix=SINGLE
// RUN: not distir-opt %s -p "search-grid{jobs=1 overlap=maybe}" 2>&1 | filecheck %s --check-prefix=MAYBE
// RUN: not distir-opt %s -p "search-grid{jobs=1 zero=1}" 2>&1 | filecheck %s --check-prefix=ZERO

// All ways to use four devices are simulated; the module becomes the fastest. Splitting the
// batch needs no communication.

// CHECK: dist.notes = ["the grid search chose batch=64 d=4 t=1 p=1 k=1, the fastest of {{.*}} that fit of {{.*}} configurations: {{.*}} samples/s, {{.*}} GB on a device"]
// CHECK: device.mesh @mesh on @box <d = 4> [0 to 4]
// CHECK-NOT: collective

// The same on two of the devices.
// PAIR: chose batch=64 d=2 t=1 p=1 k=1, the fastest of 4 that fit of 4 configurations
// PAIR: device.mesh @mesh on @box <d = 2> [0 to 2]

// Where the parameters of both layers do not fit on a device, they are split.
// SMALL: chose batch=64 d=2 t=2 p=1 k=1, the fastest of {{[0-9]+}} that fit

// NONE: error: search-grid: none of the {{.*}} possible configurations fits: the one that needs the least, batch=64 {{.*}}, needs {{.*}} GB on a device that has 1e-06 GB; use devices with more memory

// Twice as many configurations with overlapped communication beside the others.
// OVERLAP: of 8 that fit of 8 configurations
// MAYBE: error: search: overlap cannot be 'maybe'; choose from off, on

// Without buckets in any configuration.
// SINGLE: chose batch=64 d=4 t=1 p=1 k=1 no-buckets, the fastest of

// ZERO: error: search: ZeRO, activation checkpointing and offloading are for training steps, but the program updates no argument

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<64x64xf32> {dist.role = "input"}, %w1: tensor<64x128xf32> {dist.role = "parameter"}, %w2: tensor<128x64xf32> {dist.role = "parameter"}) -> tensor<64x64xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<64x64xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
  %a = onnx.Relu(%h) : (tensor<64x128xf32>) -> tensor<64x128xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<64x128xf32>, tensor<128x64xf32>) -> tensor<64x64xf32>
  func.return %y : tensor<64x64xf32>
}
