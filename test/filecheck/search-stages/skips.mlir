// RUN: distir-opt %s -p "data-parallel{axis=k},propagate-sharding,partition{lower=false},search-stages{p=2}" | filecheck %s
// RUN: distir-opt %s -p "data-parallel{axis=k},propagate-sharding,partition{lower=false},search-stages{p=2},pipeline{p=2},lower-reshard" | filecheck %s --check-prefix=RUNS
// RUN: not distir-opt %s -p "data-parallel{axis=k},propagate-sharding,partition{lower=false},search-stages{p=9}" 2>&1 | filecheck %s --check-prefix=MANY
// RUN: not distir-opt %s -p "data-parallel{axis=k},propagate-sharding,partition{lower=false},search-stages{p=2},pipeline{p=4}" 2>&1 | filecheck %s --check-prefix=OTHER

// Two towers side by side, whose ops alternate. Each cut through the order of the program
// sends what both have so far; with a tower on each stage only one value is sent, and the
// input of the other tower lives where it is used. Ops are marked with their stage.

// CHECK:      dist.notes = ["search-stages divided 7 ops into 2 stages, {{.*}} (integer-program, proven to be the best); simulated, a step takes {{.*}} s (equal work: {{.*}} s
// CHECK:      %a1 = onnx.MatMul(%xa, %wa1) {dist.stage = [[A:[0-9]+]] : i64}
// CHECK-NEXT: %b1 = onnx.MatMul(%xb, %wb1) {dist.stage = [[B:[0-9]+]] : i64}
// CHECK-NEXT: %a2 = onnx.MatMul(%a1, %wa2) {dist.stage = [[A]] : i64}
// CHECK-NEXT: %b2 = onnx.MatMul(%b1, %wb2) {dist.stage = [[B]] : i64}
// CHECK-NEXT: %a3 = onnx.MatMul(%a2, %wa3) {dist.stage = [[A]] : i64}
// CHECK-NEXT: %b3 = onnx.MatMul(%b2, %wb3) {dist.stage = [[B]] : i64}
// CHECK-NEXT: %y = onnx.Add(%a3, %b3) {dist.stage = 1 : i64}

// `pipeline` follows the marks.
// RUNS:       func.func @main(%xa: tensor<64x256xf32, #dist.layout<@stage{{[01]}}>>
// RUNS-NOT:   dist.stage
// RUNS-COUNT-4: dist.send
// RUNS-NOT:   dist.send

// MANY:   error: pipeline: 9 stages were asked for, but the program has 6 layers to deal out; choose fewer stages
// OTHER:  error: pipeline: ops are marked with stages 0 to 1, but the schedule has 4; run `search-stages` with the options of this pipeline

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e9 : f64, latency = 3.0e-6 : f64}
}
device.mesh @mesh on @box <k = 4> [0 to 4]
func.func @main(%xa: tensor<64x256xf32> {dist.role = "input"}, %xb: tensor<64x256xf32> {dist.role = "input"}, %wa1: tensor<256x256xf32> {dist.role = "parameter"}, %wb1: tensor<256x256xf32> {dist.role = "parameter"}, %wa2: tensor<256x256xf32> {dist.role = "parameter"}, %wb2: tensor<256x256xf32> {dist.role = "parameter"}, %wa3: tensor<256x256xf32> {dist.role = "parameter"}, %wb3: tensor<256x256xf32> {dist.role = "parameter"}) -> tensor<64x256xf32> {
  %a1 = onnx.MatMul(%xa, %wa1) : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %b1 = onnx.MatMul(%xb, %wb1) : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %a2 = onnx.MatMul(%a1, %wa2) : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %b2 = onnx.MatMul(%b1, %wb2) : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %a3 = onnx.MatMul(%a2, %wa3) : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %b3 = onnx.MatMul(%b2, %wb3) : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %y = onnx.Add(%a3, %b3) : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<64x256xf32>
  func.return %y : tensor<64x256xf32>
}
