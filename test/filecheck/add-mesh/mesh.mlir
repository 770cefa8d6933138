// RUN: distir-opt %s -p 'add-mesh{axes="u=2","d=2","t=1"}' | filecheck %s
// RUN: distir-opt %s -p 'add-mesh{axes="d=2"},data-parallel,propagate-sharding,partition' | filecheck %s --check-prefix=PART
// RUN: not distir-opt %s -p 'add-mesh{axes="d=4","t=2"}' 2>&1 | filecheck %s --check-prefix=LARGE
// RUN: not distir-opt %s -p 'add-mesh{axes="d"}' 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s -p 'add-mesh{axes="d=2" cluster=other}' 2>&1 | filecheck %s --check-prefix=CLUSTER
// RUN: not distir-opt %s -p 'add-mesh{axes="d=2"},data-parallel,propagate-sharding,partition,add-mesh{axes="d=2"}' 2>&1 | filecheck %s --check-prefix=AGAIN

// Axes of size 1 split nothing.

// CHECK:      device.cluster @box
// CHECK:      device.mesh @mesh on @box <u = 2, d = 2> [0 to 4]
// CHECK-NEXT: func.func @main

// PART: tensor<8x64xf32, #dist.layout<@mesh, [{d}, {}]>>

// LARGE:   error: add-mesh: d=4 x t=2 needs 8 devices, but cluster @box has 4; lower the degrees or use a larger cluster
// AXIS:    error: add-mesh: cannot read the axis 'd'; write NAME=SIZE
// CLUSTER: error: add-mesh: there is no device.cluster @other in the module
// AGAIN:   error: add-mesh: the program is distributed already; start from the sequential one

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
