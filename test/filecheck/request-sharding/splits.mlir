// RUN: distir-opt %s -p 'add-mesh{axes="d=2","t=2"},request-sharding{shard="w*:1=t","x:0=d"}' | filecheck %s
// RUN: distir-opt %s -p 'add-mesh{axes="d=2","t=2"},request-sharding{shard="w1:1=t:32"},propagate-sharding,partition' | filecheck %s --check-prefix=LENGTH
// RUN: not distir-opt %s -p 'request-sharding{shard="w1:0=t"}' 2>&1 | filecheck %s --check-prefix=MESH
// RUN: not distir-opt %s -p 'add-mesh{axes="d=2"},request-sharding{shard="w1:0=t"}' 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s -p 'add-mesh{axes="d=3"},request-sharding{shard="x:0=d"}' 2>&1 | filecheck %s --check-prefix=UNEVEN
// RUN: not distir-opt %s -p 'add-mesh{axes="d=2"},request-sharding{shard="x=d"}' 2>&1 | filecheck %s --check-prefix=TEXT

// CHECK: %x: tensor<8x64xf32> {dist.role = "input", dist.layout = #dist.layout<@mesh, [{d}, {}]>
// CHECK-SAME: %w1: tensor<64x128xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{}, {t}]>
// CHECK-SAME: %w2: tensor<128x64xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{}, {t}]>

// LENGTH: onnx.MatMul(%x, %w1) : ({{.*}}) -> tensor<8x128xf32, #dist.layout<@mesh, [{}, {t:32}]>>

// MESH:   error: the module has 0 meshes (none); it needs one to be distributed over
// AXIS:   error: mesh @mesh has no axis 't' (axes: d)
// UNEVEN: error: argument 'x'
// TEXT:   error: cannot read the split 'x=d'

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
