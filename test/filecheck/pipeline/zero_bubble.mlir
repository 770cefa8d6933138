// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 schedule=zb-h1}" | filecheck %s

// A zero-bubble schedule splits the backward of a stage by dependency: first what the stage
// before waits for, then the gradients of weights, which can wait. The functions of layers
// are split in the same way and stay functions.

// CHECK:      func.func private @dense_backward_1_input_stage1(
// CHECK:        %[[DH:.*]] = train.relu_grad %gradient,
// CHECK-NEXT:   %[[DX:.*]] = onnx.Gemm(%[[DH]], %w) {transB = 1
// CHECK-NEXT:   func.return %[[DX]], %[[DH]]
// CHECK:      func.func private @stage1_backward_input(
// CHECK:        %[[DX:[0-9]+]], %[[DH:[0-9]+]] = func.call @dense_backward_1_input_stage1(
// CHECK-NEXT:   func.return %[[DX]], %[[DH]]
// CHECK:      func.func private @dense_backward_1_weight_stage1(%x: {{.*}}, %[[DH:.*]]: tensor<4x16xf32, #dist.layout<@stage1>>)
// CHECK-NEXT:   %[[DW:.*]] = onnx.Gemm(%x, %[[DH]]) {transA = 1
// CHECK-NEXT:   func.return %[[DW]]

// The first stage gives no gradient to any other: all of its backward is one part.
// CHECK:      func.func @main(
// CHECK:      %[[DX_1:[0-9]+]], %[[DH_1:[0-9]+]] = func.call @stage1_backward_input(
// CHECK-NEXT: %[[SENT_1:.*]] = dist.send %[[DX_1]]
// CHECK-NEXT: func.call @stage0_backward_input({{.*}}, %[[SENT_1]])
// CHECK-NEXT: func.call @stage1_forward_accumulate(
// CHECK-NEXT: %[[DX_2:[0-9]+]], %[[DH_2:[0-9]+]] = func.call @stage1_backward_input(
// CHECK-NEXT: %[[SENT_2:.*]] = dist.send %[[DX_2]]
// CHECK-NEXT: func.call @stage0_backward_input_accumulate({{.*}}, %[[SENT_2]],
// CHECK-NEXT: %[[DW_1:.*]] = func.call @stage1_backward_weight(%as_1, %[[DH_1]])
// CHECK-NEXT: %[[DW:.*]] = func.call @stage1_backward_weight_accumulate(%as_3, %[[DH_2]], %[[DW_1]])
// CHECK:      train.sgd %w2, %[[DW]]

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
