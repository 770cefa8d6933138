// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=3 k=2})" 2>&1 | filecheck %s --check-prefix=STAGES
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=3})" 2>&1 | filecheck %s --check-prefix=BATCH
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=3 k=2 stages=\"l2\",\"l1\"})" 2>&1 | filecheck %s --check-prefix=BACKWARDS
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 stages=\"l3\"})" 2>&1 | filecheck %s --check-prefix=SCOPE
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 schedule=zero-bubble})" 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not distir-opt %s --pass-pipeline="builtin.module(differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 schedule=1f1b chunks=2})" 2>&1 | filecheck %s --check-prefix=WRONG
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 schedule=1f1b})" 2>&1 | filecheck %s --check-prefix=INFERENCE
// RUN: not distir-opt %s --pass-pipeline="builtin.module(differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 schedule=forward})" 2>&1 | filecheck %s --check-prefix=TRAINING
// RUN: not distir-opt %s --pass-pipeline="builtin.module(pipeline{p=2})" 2>&1 | filecheck %s --check-prefix=TIME
// RUN: echo "0F0,0F1,0B0,0B1" > %t.MISSING.csv
// RUN: echo "1F0,1B0,1F1" >> %t.MISSING.csv
// RUN: not distir-opt %s --pass-pipeline="builtin.module(differentiate{loss=mse optimizer=sgd},distribute{p=2 k=2 schedule_file=\"%t.MISSING.csv\"})" 2>&1 | filecheck %s --check-prefix=MISSING

// What cannot be a pipeline is refused, with what to do about it.

// STAGES: error: pipeline: 3 stages were asked for, but the program has 2 layers to deal out; choose fewer stages (-p) or fewer chunks
// BATCH: error: data-parallel: the batch of 8 (dimension 0 of input 'x') cannot be split evenly over axis 'k' of size 3; choose a batch that is a multiple of 3, or another -k
// BACKWARDS: error: pipeline: the list of stages goes backwards: 'l1' begins no later than the stage before it; list scopes in the order of the program
// SCOPE: error: pipeline: no op of the forward pass is in scope 'l3'; the scopes are l1, l2
// UNKNOWN: error: schedule: there is none called 'zero-bubble': choose from gpipe, 1f1b,
// WRONG: error: schedule 1f1b: it has 1 chunk (stages on each rank), not 2: give it as many, or choose a schedule that takes 2: interleaved-1f1b,
// INFERENCE: error: pipeline: the schedule has backwards, but the program only computes forwards; choose the schedule `forward`
// TRAINING: error: pipeline: the schedule has no backward, but the program is a training step; choose one that has, such as 1f1b
// TIME: error: pipeline works on a program on one device.mesh with 'k', the micro-batch axis, as its first axis

// Schedules from a file are checked before they are used.

// MISSING: error: schedule: stage 1 has no backward of micro-batch 1: add 1B1, or 1I1 and 1W1, to rank 1

device.cluster @box {
  device.kind @gpu on [0 to 8] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 8 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x16xf32> {dist.role = "input"}, %w1: tensor<16x32xf32> {dist.role = "parameter"}, %w2: tensor<32x4xf32> {dist.role = "parameter"}) -> tensor<8x4xf32> {
  %h = onnx.MatMul(%x, %w1) {scope = "l1"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) {scope = "l1"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%a, %w2) {scope = "l2"} : (tensor<8x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
