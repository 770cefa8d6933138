// RUN: distir-opt %s -p 'search-sharding{axes="t=2" p=2 k=2}' | filecheck %s
// RUN: distir-opt %s -p 'differentiate{loss=mse optimizer=sgd},search-sharding{axes="t=2" k=2}' | filecheck %s --check-prefix=STEP
// RUN: distir-opt %s -p 'search-sharding{axes="a=2","b=2","c=2"}' | filecheck %s --check-prefix=AXES
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" schedule=gpipe}' 2>&1 | filecheck %s --check-prefix=ONE
// RUN: not distir-opt %s -p 'search-sharding{axes="k=2"}' 2>&1 | filecheck %s --check-prefix=TIME
// RUN: not distir-opt %s -p 'search-sharding{axes="t=4" p=4 k=2}' 2>&1 | filecheck %s --check-prefix=SIZE
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" p=2 k=2 memory=1.0e6}' 2>&1 | filecheck %s --check-prefix=MEMORY

// Two micro-batches through two stages of two devices. The layouts are those that one mesh
// would have: columns of the first matrix, rows of the second. What is sent from stage to
// stage stays split.

// CHECK: dist.notes = ["search-sharding: {{.*}} s of work and communication
// CHECK: func.func private @stage0_forward(%x: tensor<4x1024xf32, #dist.layout<@stage0>>, %w1: tensor<1024x4096xf32, #dist.layout<@stage0, [{}, {t}]>>)
// CHECK-NOT: collective
// CHECK: func.func private @stage1_forward({{.*}}, %w2: tensor<4096x1024xf32, #dist.layout<@stage1, [{t}, {}]>>)
// CHECK: collective.reduce_scatter
// CHECK: func.func @main
// CHECK-COUNT-2: dist.send %{{.*}} : tensor<4x4096xf32, #dist.layout<@stage0, [{}, {t}]>> -> tensor<4x4096xf32, #dist.layout<@stage1, [{}, {t}]>>

// Without a pipeline gradients accumulate: on each device its part, which is never
// communicated.
// STEP: func.func private @backward_accumulate
// STEP-NOT: collective
// STEP: onnx.Add(%sum, %{{.*}}) : (tensor<4096x1024xf32, #dist.layout<@mesh, [{t}, {}]>>
// STEP: func.func @main
// STEP-NOT: collective
// STEP-COUNT-2: train.sgd

// Three axes, chosen one after the other if there are many choices, divide the work by eight.
// AXES: device.mesh @mesh on @box <a = 2, b = 2, c = 2> [0 to 8]
// AXES: %w1: tensor<1024x4096xf32, #dist.layout<@mesh, [{}, {a, b, c}]>>
// AXES-SAME: %w2: tensor<4096x1024xf32, #dist.layout<@mesh, [{a, b}, {c}]>>

// ONE: error: search-sharding: schedule is of a pipeline, but p and k are 1
// TIME: error: search-sharding: 'k' is the micro-batch axis, which is no axis of devices
// SIZE: error: a pipeline of 4 stages on 4 devices each needs 16 devices, but cluster @box has 8
// MEMORY: error: search-sharding: no layouts fit into 1e+06 bytes per device; {{.*}} bytes would do. Most is taken by w1, w2

device.cluster @box {
  device.kind @gpu on [0 to 8] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 8 {bandwidth = 1.5e11 : f64, latency = 1.0e-6 : f64}
}
func.func @main(%x: tensor<8x1024xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<1024x4096xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<4096x1024xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x1024xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x1024xf32>, tensor<1024x4096xf32>) -> tensor<8x4096xf32>
  %a = onnx.Relu(%h) : (tensor<8x4096xf32>) -> tensor<8x4096xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<8x4096xf32>, tensor<4096x1024xf32>) -> tensor<8x1024xf32>
  func.return %y : tensor<8x1024xf32>
}
