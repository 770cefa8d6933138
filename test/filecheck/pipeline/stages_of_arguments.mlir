// RUN: distir-opt %s -p 'distribute{p=2 k=2}' | filecheck %s
// RUN: sed 's/dist.stage = 0/dist.stage = 1/' %s | distir-opt -p 'distribute{p=2 k=2}' | filecheck %s --check-prefix=SECOND
// RUN: sed 's/dist.stage = 1/dist.stage = 2/' %s | not distir-opt -p 'distribute{p=2 k=2}' 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: sed 's/"w0"/"w0", dist.stage = 1 : i64/' %s | not distir-opt -p 'distribute{p=2 k=2}' 2>&1 | filecheck %s --check-prefix=ORDER

// Arguments may ask for the stage that they are to be on. By themselves, the first stage would
// have two of the three products.

// CHECK:       func.func private @stage0_forward(
// CHECK-NEXT:    onnx.MatMul(%x, %w0) {scope = "l0"}
// CHECK-NEXT:    onnx.MatMul(%a, %w1) {scope = "l1"}
// CHECK:       func.func private @stage1_forward(
// CHECK-NEXT:    onnx.MatMul(%b, %w2) {scope = "l2"}
// CHECK-NOT:     dist.stage

// SECOND:      func.func private @stage0_forward(
// SECOND-NEXT:   onnx.MatMul(%x, %w0) {scope = "l0"}
// SECOND-NEXT:   func.return
// SECOND:      func.func private @stage1_forward(
// SECOND-NEXT:   onnx.MatMul(%a, %w1) {scope = "l1"}
// SECOND-NEXT:   onnx.MatMul(%b, %w2) {scope = "l2"}

// COUNT: error: pipeline: an argument is asked to be on stage 2 (dist.stage), but the schedule has 2 stages, which are numbered from 0; ask for one of them
// ORDER: error: pipeline: arguments are asked to be on stages (dist.stage) that no division of the program gives, as it uses them in another order; ask for others

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x64xf32> {dist.role = "input", dist.name = "x"},
                %w0: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w0"},
                %w1: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w1", dist.stage = 0 : i64},
                %w2: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w2", dist.stage = 1 : i64}) -> (tensor<8x64xf32> {dist.name = "y"}) {
  %a = onnx.MatMul(%x, %w0) {scope = "l0"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %b = onnx.MatMul(%a, %w1) {scope = "l1"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %c = onnx.MatMul(%b, %w2) {scope = "l2"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  func.return %c : tensor<8x64xf32>
}
