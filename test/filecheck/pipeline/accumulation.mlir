// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},distribute{k=2 d=2 buckets=false}" | filecheck %s

// Micro-batches with one stage: gradients are accumulated, in the order 1F1B. A batch of 8
// is split into two micro-batches, and each of them over the devices: so a device holds
// runs of two samples of the whole batch.

// CHECK:      device.mesh @mesh on @box <d = 2> [0 to 2]
// CHECK:      func.func private @backward_accumulate({{.*}}, %sum: tensor<32x4xf32, #dist.layout<@mesh, partial sum {d}>>
// CHECK:        %[[DW2:.*]] = onnx.Gemm(%a, {{.*}}-> tensor<32x4xf32, #dist.layout<@mesh, partial sum {d}>>
// CHECK-NEXT:   onnx.Add(%sum, %[[DW2]])
// CHECK:      func.func @main(%x: tensor<8x16xf32, #dist.layout<@mesh, [{d:2}, {}]>>
// CHECK:        %x_1, %x_2 = onnx.Split(%x, {{.*}}) -> (tensor<4x16xf32, #dist.layout<@mesh, [{d}, {}]>>, tensor<4x16xf32, #dist.layout<@mesh, [{d}, {}]>>)
// CHECK:        func.call @forward(%x_1, %w1, %w2, %labels_1)
// CHECK:        func.call @backward(
// CHECK-NEXT:   func.call @forward_accumulate(%x_2, %w1, %w2, %labels_2,
// CHECK-NEXT:   %[[DW2:[0-9]+]], %[[DW1:[0-9]+]] = func.call @backward_accumulate(

// Devices add up once, after the micro-batches.
// CHECK-NEXT:   train.sgd %w1, %[[DW1]]
// CHECK-NEXT:   %[[SUM:.*]] = collective.all_reduce %[[DW2]] over [d]
// CHECK-NEXT:   train.sgd %w2, %[[SUM]]

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x16xf32> {dist.role = "input"}, %w1: tensor<16x32xf32> {dist.role = "parameter"}, %w2: tensor<32x4xf32> {dist.role = "parameter"}) -> tensor<8x4xf32> {
  %h = onnx.MatMul(%x, %w1) {scope = "l1"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) {scope = "l1"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%a, %w2) {scope = "l2"} : (tensor<8x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
