// RUN: distir-opt %s --pass-pipeline="builtin.module(differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 stages=\"l2\"})" | filecheck %s

// Both stages use the matrix %w. It lives on the first and is sent to the second once, not
// for each micro-batch. Each stage adds up its own gradient of it; the two are added after
// the micro-batches, where %w is updated.

// CHECK:       func.func @main(%x: {{.*}}, %w: tensor<16x16xf32, #dist.layout<@stage0>>
// CHECK:       %[[W:.*]] = dist.send %w {dist.asynchronous} : tensor<16x16xf32, #dist.layout<@stage0>> -> tensor<16x16xf32, #dist.layout<@stage1>>
// CHECK-NOT:   dist.send %w
// CHECK:       %{{.*}}, %[[SECOND:[0-9]+]] = func.call @stage1_backward_accumulate(
// CHECK:       %[[FIRST:.*]] = func.call @stage0_backward_accumulate(
// CHECK:       %[[SENT:.*]] = dist.send %[[SECOND]] {dist.asynchronous} : tensor<16x16xf32, #dist.layout<@stage1>> -> tensor<16x16xf32, #dist.layout<@stage0>>
// CHECK-NEXT:  %[[SUM:.*]] = onnx.Add(%[[SENT]], %[[FIRST]])
// CHECK-NEXT:  train.sgd %w, %[[SUM]]

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x16xf32> {dist.role = "input"}, %w: tensor<16x16xf32> {dist.role = "parameter"}) -> tensor<8x16xf32> {
  %h = onnx.MatMul(%x, %w) {scope = "l1"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %a = onnx.Relu(%h) {scope = "l1"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = onnx.MatMul(%a, %w) {scope = "l2"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
