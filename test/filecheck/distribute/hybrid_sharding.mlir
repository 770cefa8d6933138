// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd momentum=0.9},distribute{r=2 d=2 k=2 zero=2}" | filecheck %s

// Groups of two devices, the batch over both axes, and states in parts in each group. Every
// micro-batch scatters its gradient in the group; the parts are added up over the groups once.

// CHECK: device.mesh @mesh on @box <r = 2, d = 2> [0 to 4]

// CHECK: func.func private @backward_accumulate({{.*}}%sum: tensor<16x4xf32, #dist.layout<@mesh, [{d}, {}], partial sum {r}>>)
// CHECK: [[G:%.*]] = onnx.Gemm({{.*}}-> tensor<16x4xf32, #dist.layout<@mesh, partial sum {d, r}>>
// CHECK-NEXT: [[P:%.*]] = collective.reduce_scatter [[G]] over [d]
// CHECK-NEXT: onnx.Add(%sum, [[P]])

// CHECK: func.func @main(%x: tensor<8x16xf32, #dist.layout<@mesh, [{r:2, d:1}, {}]>>
// CHECK-SAME: %w_momentum: tensor<16x4xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK: collective.all_reduce %{{.*}} over [r] : tensor<16x4xf32, #dist.layout<@mesh, [{d}, {}], partial sum {r}>> -> tensor<16x4xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK: train.sgd
// CHECK: collective.all_gather %{{.*}} over [d]

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
                %w: tensor<16x4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x4xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
