// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 blocking_sends=true}" | filecheck %s
// RUN: distir-opt %s -p "distribute{p=2 k=2 blocking_sends=true}" | filecheck %s --check-prefix=INFER

// Figure 2 of the DistIR paper: a pipeline that trains an MLP of two layers on two devices
// with two micro-batches, from the sequential program below. Its lines 17 to 37 are those
// of @main here, in the same order; `x_1` of the paper is %x_1, `as_1` %as, `ar_1` %as_1.
// A send occupies both devices, so it stands where both are free.

// CHECK:      device.mesh @stage0 on @box <> [0]
// CHECK:      device.mesh @stage1 on @box <> [1]
// CHECK:      func.func private @stage0_forward(%x: tensor<4x16xf32, #dist.layout<@stage0>>, %w1: tensor<16x16xf32, #dist.layout<@stage0>>)
// CHECK-NEXT:   func.call @dense_forward_stage0(%x, %w1)

// CHECK:      func.func @main(%w1: tensor<16x16xf32, #dist.layout<@stage0>>
// CHECK-SAME: %w2: tensor<16x16xf32, #dist.layout<@stage1>>
// CHECK-SAME: %x: tensor<8x16xf32, #dist.layout<@stage0>>
// CHECK-SAME: %labels: tensor<8x16xf32, #dist.layout<@stage1>>

// CHECK:      %x_1, %x_2 = onnx.Split(%x,
// CHECK:      %as = func.call @stage0_forward(%x_1, %w1)
// CHECK-NEXT: %as_1 = dist.send %as : tensor<4x16xf32, #dist.layout<@stage0>> -> tensor<4x16xf32, #dist.layout<@stage1>>
// CHECK-NEXT: %as_2 = func.call @stage0_forward(%x_2, %w1)
// CHECK:      %labels_1, %labels_2 = onnx.Split(%labels,
// CHECK-NEXT: %p, %{{.*}} = func.call @stage1_forward(%as_1, %w2, %labels_1)
// CHECK-NEXT: %as_3 = dist.send %as_2
// CHECK:      %[[DAS_1:[0-9]+]], %[[DW2_1:[0-9]+]] = func.call @stage1_backward({{.*}}, %as_1, %w2, %p)
// CHECK-NEXT: %[[DAR_1:.*]] = dist.send %[[DAS_1]] : tensor<4x16xf32, #dist.layout<@stage1>> -> tensor<4x16xf32, #dist.layout<@stage0>>
// CHECK-NEXT: %[[DW1_1:.*]] = func.call @stage0_backward(%x_1, %as, %[[DAR_1]])
// CHECK-NEXT: %p_1, %{{.*}} = func.call @stage1_forward_accumulate(%as_3, %w2, %labels_2,

// The gradients of the second micro-batch are added to those of the first at once.
// CHECK-NEXT: %[[DAS_2:[0-9]+]], %[[DW2:[0-9]+]] = func.call @stage1_backward_accumulate({{.*}}, %as_3, %w2, %p_1, %[[DW2_1]])
// CHECK-NEXT: %[[DAR_2:.*]] = dist.send %[[DAS_2]]
// CHECK-NEXT: %[[DW1:.*]] = func.call @stage0_backward_accumulate(%x_2, %as_2, %[[DAR_2]], %[[DW1_1]])
// CHECK-NEXT: train.sgd %w1, %[[DW1]]
// CHECK-NEXT: train.sgd %w2, %[[DW2]]
// CHECK-NEXT: func.return

// The forward alone: what the last stage gives for each micro-batch is joined there.
// INFER:      func.func @main(
// INFER:      %as = func.call @stage0_forward(%x_1, %w1)
// INFER-NEXT: %as_1 = dist.send %as
// INFER-NEXT: %as_2 = func.call @stage0_forward(%x_2, %w1)
// INFER-NEXT: %p = func.call @stage1_forward(%as_1, %w2)
// INFER-NEXT: %as_3 = dist.send %as_2
// INFER-NEXT: %p_1 = func.call @stage1_forward(%as_3, %w2)
// INFER-NEXT: %[[P:.*]] = onnx.Concat(%p, %p_1) {axis = 0 : i64}
// INFER-NEXT: func.return %[[P]] : tensor<8x16xf32, #dist.layout<@stage1>>

device.cluster @box {
  device.kind @gpu on [0 to 2] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 2 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func private @dense(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %a = onnx.Relu(%h) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %a : tensor<8x16xf32>
}
func.func @main(%w1: tensor<16x16xf32> {dist.role = "parameter"}, %w2: tensor<16x16xf32> {dist.role = "parameter"}, %x: tensor<8x16xf32> {dist.role = "input"}) -> tensor<8x16xf32> {
  %as = func.call @dense(%x, %w1) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %p = func.call @dense(%as, %w2) : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  func.return %p : tensor<8x16xf32>
}
