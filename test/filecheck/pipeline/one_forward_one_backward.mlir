// RUN: distir-opt %s --pass-pipeline="builtin.module(differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 stages=\"l2\"})" | filecheck %s

// 1F1B with two stages and two micro-batches. Each stage and phase is a function on the
// stage's mesh, with the shapes of one micro-batch; stage 1 begins with the scope "l2".

// CHECK:      func.func private @stage0_forward(%x: tensor<4x16xf32, #dist.layout<@stage0>>, %w1:
// CHECK-NEXT:   %h = onnx.MatMul(%x, %w1)
// CHECK-NEXT:   %a = onnx.Relu(%h)
// CHECK-NEXT:   func.return %a

// What the backward of the same stage and micro-batch needs is returned besides (the
// difference to the labels), and what is added up (the loss).
// CHECK:      func.func private @stage1_forward(%a: tensor<4x32xf32, #dist.layout<@stage1>>, %w2:
// CHECK-NEXT:   %y = onnx.MatMul(%a, %w2)
// CHECK-NEXT:   %[[DIFFERENCE:.*]] = onnx.Sub(%y, %labels)
// CHECK:        %[[SUM:.*]] = onnx.ReduceSumSquare(%[[DIFFERENCE]])
// CHECK-NEXT:   %[[COUNT:.*]] = onnx.Constant() {value = dense<3.200000e+01> : tensor<f32>
// CHECK-NEXT:   %[[LOSS:.*]] = onnx.Div(%[[SUM]], %[[COUNT]])
// CHECK-NEXT:   func.return %[[DIFFERENCE]], %[[LOSS]]

// A backward op is where its gradient and what else it needs are. That is where its forward
// is, or one stage on, if that has the output of the forward (as Relu's).
// CHECK:      func.func private @stage1_backward(
// CHECK:        %[[DA:.*]] = onnx.Gemm({{.*}}, %w2) {transB = 1
// CHECK-NEXT:   %[[DW2:.*]] = onnx.Gemm(%a, {{.*}}) {transA = 1
// CHECK:        %[[DH:.*]] = train.relu_grad %[[DA]], %a
// CHECK-NEXT:   func.return %[[DH]], %[[DW2]]
// CHECK:      func.func private @stage0_backward(%x: {{.*}}, %[[DH:.*]]: tensor<4x32xf32, #dist.layout<@stage0>>)
// CHECK-NEXT:   %[[DW1:.*]] = onnx.Gemm(%x, %[[DH]]) {transA = 1
// CHECK-NEXT:   func.return %[[DW1]]

// From the second micro-batch on they add to what is there.
// CHECK:      func.func private @stage1_backward_accumulate({{.*}}, %sum: tensor<32x4xf32, #dist.layout<@stage1>>)
// CHECK:        %[[PART:.*]] = onnx.Gemm(%a, {{.*}}) {transA = 1
// CHECK-NEXT:   %[[SUM:.*]] = onnx.Add(%sum, %[[PART]])
// CHECK:        func.return %{{.*}}, %[[SUM]]

// Sends stand right after what they send and leave the devices free; 0F0 0F1 0B0 0B1 and
// 1F0 1B0 1F1 1B1 are merged by the time at which each could start.
// CHECK:      func.func @main(
// CHECK:      %a = func.call @stage0_forward(%x_1, %w1)
// CHECK-NEXT: %a_1 = dist.send %a {dist.asynchronous} :
// CHECK-NEXT: %a_2 = func.call @stage0_forward(%x_2, %w1)
// CHECK-NEXT: %a_3 = dist.send %a_2 {dist.asynchronous} :
// CHECK:      func.call @stage1_forward(%a_1, %w2, %labels_1)
// CHECK:      %[[DH_1:[0-9]+]], %{{.*}} = func.call @stage1_backward(
// CHECK-NEXT: %[[BACK_1:.*]] = dist.send %[[DH_1]] {dist.asynchronous} :
// CHECK-NEXT: func.call @stage0_backward(%x_1, %[[BACK_1]])
// CHECK-NEXT: func.call @stage1_forward_accumulate(%a_3, %w2, %labels_2,
// CHECK-NEXT: %[[DH_2:[0-9]+]], %[[DW2:[0-9]+]] = func.call @stage1_backward_accumulate(
// CHECK-NEXT: %[[BACK_2:.*]] = dist.send %[[DH_2]] {dist.asynchronous} :
// CHECK-NEXT: %[[DW1:.*]] = func.call @stage0_backward_accumulate(%x_2, %[[BACK_2]],
// CHECK-NEXT: train.sgd %w1, %[[DW1]]
// CHECK-NEXT: train.sgd %w2, %[[DW2]]

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
