// RUN: distir-opt %s -p 'search-sharding{axes="t=4" costs=unit}' | filecheck %s
// RUN: sed s/8x/4096x/g %s | distir-opt -p 'search-sharding{axes="t=4" costs=unit}' | filecheck %s --check-prefix=BATCH
// RUN: not distir-opt %s -p 'search-sharding{axes="t=4"}' 2>&1 | filecheck %s --check-prefix=CLUSTER

// Without a cluster, floating-point operations and bytes are counted. For eight rows the weights
// are split, and the devices keep their part of what is reduced.

// CHECK: dist.notes = ["search-sharding: {{.*}} operations of work and communication, at most 0 % above the best
// CHECK: %w1: tensor<1024x4096xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK-SAME: %w2: tensor<4096x1024xf32, #dist.layout<@mesh, [{t}, {}]>>
// CHECK: collective.reduce_scatter %{{.*}} over [t]
// CHECK-NEXT: func.return

// For thousands of rows these are split, and nothing is communicated.
// BATCH: %w1: tensor<1024x4096xf32, #dist.layout<@mesh>>
// BATCH-NOT: collective

// CLUSTER: error: search-sharding: the module has no device.cluster, which says what everything costs; name one with `cluster=`, or choose costs=unit

func.func @main(%x: tensor<8x1024xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<1024x4096xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<4096x1024xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x1024xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x1024xf32>, tensor<1024x4096xf32>) -> tensor<8x4096xf32>
  %a = onnx.Relu(%h) : (tensor<8x4096xf32>) -> tensor<8x4096xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<8x4096xf32>, tensor<4096x1024xf32>) -> tensor<8x1024xf32>
  func.return %y : tensor<8x1024xf32>
}
