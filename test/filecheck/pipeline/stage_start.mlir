// RUN: distir-opt %s -p 'distribute{p=2 k=2}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{p=2 k=2 stages=search}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{p=2 k=2 stages=l1}' | filecheck %s
// RUN: distir-opt %s -p 'differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2}' | filecheck %s --check-prefix=TRAINED
// RUN: distir-opt %s -p 'distribute{k=2}' | filecheck %s --check-prefix=ONE
// RUN: not distir-opt %s -p 'distribute{p=3 k=2}' 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not distir-opt %s -p 'distribute{p=2 k=2 stages=l2}' 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: distir-opt %s -p 'distribute{p=3 k=2 stages=l1,l2}' | filecheck %s --check-prefix=BOTH
// RUN: not distir-opt %s -p 'distribute{p=2 k=2 stages=l1,l2}' 2>&1 | filecheck %s --check-prefix=MANY
// RUN: not distir-opt %s -p 'distribute{k=2 stages=l1}' 2>&1 | filecheck %s --check-prefix=NONE

// By itself the first stage would have two of the three.
// CHECK:       func.func private @stage0_forward(
// CHECK-NEXT:    onnx.MatMul(%x, %w0) {scope = "l0"}
// CHECK-NEXT:    func.return
// CHECK:       func.func private @stage1_forward(
// CHECK-NEXT:    onnx.MatMul(%a, %w1) {scope = "l1"}
// CHECK-NEXT:    onnx.MatMul(%b, %w2) {scope = "l2"}

// TRAINED: func.func private @stage0_forward({{.*}}, %w0:{{[^%]*}})

// ONE: func.func @main

// COUNT: error: pipeline: a stage is to begin with onnx.MatMul %b (in l1) (script.py, line 9): these 1 starts make 2 stages, but the schedule has 3
// OTHER: error: pipeline: a stage is to begin with onnx.MatMul %b (in l1) (script.py, line 9), but with stages=l2 a stage begins with onnx.MatMul %c (in l2); ask for one of these

// The option may ask for more starts; all of them count.
// BOTH: func.func private @stage2_forward(
// MANY: error: pipeline: a stage is to begin with onnx.MatMul %b (in l1) (script.py, line 9); a stage is to begin with onnx.MatMul %c (in l2) (stages=l1,l2): these 2 starts make 3 stages, but the schedule has 2 (pipeline ranks x chunks); choose as many, or other starts.
// NONE: error: pipeline: stages=l1 says where stages begin, but the schedule has one stage; leave it out, or choose a larger p

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x64xf32> {dist.role = "input", dist.name = "x"},
                %w0: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w0"},
                %w1: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w1"},
                %w2: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w2"}) -> (tensor<8x64xf32> {dist.name = "y"}) {
  %a = onnx.MatMul(%x, %w0) {scope = "l0"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %b = onnx.MatMul(%a, %w1) {dist.stage_start = "script.py, line 9", scope = "l1"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %c = onnx.MatMul(%b, %w2) {scope = "l2"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  func.return %c : tensor<8x64xf32>
}
