// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{p=2 k=2 stages=l2 cluster=cpu}" | filecheck %s
// RUN: distir-opt %s -p "distribute{p=2 k=2 stages=l2 schedule=forward cluster=cpu}" | filecheck %s --check-prefix FORWARD

// If the caller computes the loss, the last stage has all outputs of a micro-batch at once,
// those of earlier stages too, and their gradients enter there.
// CHECK:       func.func private @stage1_forward(%a: tensor<4x16xf32
// CHECK-NEXT:  %[[A:.*]] = onnx.Identity(%a) {scope = "l1"}
// CHECK:       func.return %[[A]], %y :
// CHECK:       func.func @main
// CHECK-SAME:  %hidden_gradient: tensor<8x16xf32, #dist.layout<@stage1>>
// CHECK-SAME:  tensor<8x16xf32, #dist.layout<@stage1>> {dist.name = "hidden"}
// CHECK:       func.return
// CHECK-SAME:  tensor<8x4xf32, #dist.layout<@stage1>>, tensor<8x16xf32, #dist.layout<@stage1>>

// Without gradients they stay where they are.
// FORWARD-NOT: onnx.Identity
// FORWARD:     func.return %y_2, %a_4 : tensor<8x4xf32, #dist.layout<@stage1>>, tensor<8x16xf32, #dist.layout<@stage0>>

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<16x16xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<16x4xf32> {dist.role = "parameter", dist.name = "w2"}) -> (tensor<8x4xf32> {dist.name = "y"}, tensor<8x16xf32> {dist.name = "hidden"}) {
  %h = onnx.MatMul(%x, %w1) {scope = "l1"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %a = onnx.Relu(%h) {scope = "l1"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %y = onnx.MatMul(%a, %w2) {scope = "l2"} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  func.return %y, %a : tensor<8x4xf32>, tensor<8x16xf32>
}
