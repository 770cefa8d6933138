// RUN: distir-opt %s -p 'differentiate{loss=mse optimizer=sgd},search-sharding{axes="t=4" p=2 k=4}' | filecheck %s

// Two nodes of four devices, one for each stage. Links in a node sum while they send, so that
// the cheapest layouts keep activations whole between layers. But what is sent to the other
// node takes a quarter of the time if each device sends a part, and sends count.

// CHECK: dist.notes = ["search-sharding: {{.*}} s of work, communication and sends, at most 0 % above the best
// CHECK: func.func @main
// CHECK: dist.send %{{.*}} : tensor<4x64xf32, #dist.layout<@stage0, [{}, {t}]>> -> tensor<4x64xf32, #dist.layout<@stage1, [{}, {t}]>>
// CHECK: dist.send %{{.*}} : tensor<4x64xf32, #dist.layout<@stage1, [{}, {t}]>> -> tensor<4x64xf32, #dist.layout<@stage0, [{}, {t}]>>

device.cluster @nodes {
  device.kind @gpu on [0 to 8] {memory = 32000000000 : i64, memory_bandwidth = 1.0e9 : f64, peak_flops = {default = 1.0e10 : f64}, launch_latency = 1.0e-7 : f64}
  device.link @switch spans 4 {bandwidth = 1.0e9 : f64, latency = 1.0e-7 : f64, in_fabric_reduction = true}
  device.link @network spans 8 {bandwidth = 1.0e7 : f64, latency = 1.0e-6 : f64}
}
func.func @main(%x: tensor<16x64xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w2"}, %w3: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w3"}, %w4: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w4"}) -> tensor<16x64xf32> {
  %h1 = onnx.MatMul(%x, %w1) : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %a1 = onnx.Relu(%h1) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %h2 = onnx.MatMul(%a1, %w2) : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %a2 = onnx.Relu(%h2) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %h3 = onnx.MatMul(%a2, %w3) : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  %a3 = onnx.Relu(%h3) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %h4 = onnx.MatMul(%a3, %w4) : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
  func.return %h4 : tensor<16x64xf32>
}
