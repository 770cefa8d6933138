// RUN: distir-opt %s -p 'distribute{t=2 shard="r:1=t:4"}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{t=2}' | filecheck %s --check-prefix=WHOLE

// Hidden features are split where that is asked for. Two devices would each save 1800 operations in a step here, and
// wait for a message.

device.cluster @box {
  device.kind @chip on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+06 : f64, peak_flops = {default = 1.0e+06 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 1.0e+06 : f64, latency = 1.0e-06 : f64}
}

func.func @main(%x: tensor<5x4x6xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<1x32x6xf32> {dist.role = "parameter", dist.name = "w"}, %r: tensor<1x32x8xf32> {dist.role = "parameter", dist.name = "r"}) -> tensor<5x1x4x8xf32> {
  %y = onnx.LSTM(%x, %w, %r) {hidden_size = 8 : i64} : (tensor<5x4x6xf32>, tensor<1x32x6xf32>, tensor<1x32x8xf32>) -> tensor<5x1x4x8xf32>
  func.return %y : tensor<5x1x4x8xf32>
}

// CHECK: %y = train.gathered_lstm %x, %w, %r {direction = "forward"} : tensor<5x4x6xf32, #dist.layout<@mesh>>, tensor<1x32x6xf32, #dist.layout<@mesh, [{}, {t:4}, {}]>>, tensor<1x32x8xf32, #dist.layout<@mesh, [{}, {t:4}, {}]>> -> tensor<5x1x4x8xf32, #dist.layout<@mesh, [{}, {}, {}, {t}]>>

// WHOLE: %y = onnx.LSTM(%x, %w, %r)
