// RUN: not distir-opt %s -p 'apply-schedule{entry=none}' 2>&1 | filecheck %s --check-prefix=ENTRY
// RUN: not distir-opt %s -p 'apply-schedule{entry=misspelt}' 2>&1 | filecheck %s --check-prefix=MISSPELT
// RUN: not distir-opt %s -p 'apply-schedule{entry=missing}' 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not distir-opt %s -p 'apply-schedule{entry=count}' 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not distir-opt %s -p 'apply-schedule{entry=parameter}' 2>&1 | filecheck %s --check-prefix=PARAMETER
// RUN: not distir-opt %s -p 'apply-schedule{entry=twice}' 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not distir-opt %s -p 'apply-schedule{entry=dimension}' 2>&1 | filecheck %s --check-prefix=DIMENSION
// RUN: not distir-opt %s -p 'apply-schedule{entry=linear}' 2>&1 | filecheck %s --check-prefix=LINEAR
// RUN: not distir-opt %s -p 'apply-schedule{entry=knob}' 2>&1 | filecheck %s --check-prefix=KNOB
// RUN: not distir-opt %s -p 'apply-schedule{entry=knob set="ratio=0.3"}' 2>&1 | filecheck %s --check-prefix=VALUE
// RUN: not distir-opt %s -p 'apply-schedule{entry=knob set="ratio=2.0"}' 2>&1 | filecheck %s --check-prefix=AMOUNT
// RUN: not distir-opt %s -p 'apply-schedule{entry=misspelt set="ratio"}' 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not distir-opt %s -p 'apply-schedule{entry=whole set="ratio=1"}' 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not distir-opt %s -p 'apply-schedule{entry=start}' 2>&1 | filecheck %s --check-prefix=START
// RUN: not distir-opt %s -p 'apply-schedule{entry=nested}' 2>&1 | filecheck %s --check-prefix=NESTED
// RUN: not distir-opt %s -p 'apply-schedule{entry=again}' 2>&1 | filecheck %s --check-prefix=AGAIN
// RUN: not distir-opt %s -p 'apply-schedule{entry=policy}' 2>&1 | filecheck %s --check-prefix=POLICY
// RUN: not distir-opt %s -p 'apply-schedule{entry=both}' 2>&1 | filecheck %s --check-prefix=BOTH
// RUN: not distir-opt %s -p 'apply-schedule{entry=foreign}' 2>&1 | filecheck %s --check-prefix=FOREIGN
// RUN: not distir-opt %s -p 'differentiate{loss=mse optimizer=sgd},apply-schedule{entry=whole}' 2>&1 | filecheck %s --check-prefix=LATE
// RUN: not distir-opt %s -p 'apply-schedule{entry=whole},distribute{t=2 shard="h.0.weight:0=t"}' 2>&1 | filecheck %s --check-prefix=OPTION

// ENTRY: error: apply-schedule: the module has no transform.named_sequence @none; it has @misspelt, @missing
// MISSPELT: error: s.py, line 1: no module matches 'g.*'; there are h.*
// MISSING: error: @missing, op 2 (schedule.match): no module in h.0, h.1 matches 'atn'; there are attn
// COUNT: error: @count, op 1 (schedule.match): 'h.*' is expected to match 12 modules, but matches 2: h.0, h.1
// PARAMETER: error: @parameter, op 2 (schedule.parameters): module 'h.0' uses no parameter "bias"; it uses weight
// TWICE: error: argument 'h.0.weight': s.py, line 7 asks that axis 't' splits dimension 0, but s.py, line 6 that it splits dimension 1; ask for one of these
// DIMENSION: error: @dimension, op 3 (schedule.shard): 'h.0.weight' has no dimension 2: its type is tensor<16x16xf32>
// LINEAR: error: @linear, op 2 (schedule.split_linear): module 'act' has 0 matrix products with a parameter
// KNOB: error: @knob, op 1 (schedule.knob): knob 'ratio' has no value; choose one of 1.0, 0.5, 2.0 with --set ratio=VALUE
// VALUE: error: @knob, op 1 (schedule.knob): knob 'ratio' cannot be 0.3; choose one of 1.0, 0.5, 2.0
// AMOUNT: error: @knob, op 3 (schedule.first): cannot take the first 2.0 of 2 modules
// TEXT: error: apply-schedule: cannot read the choice 'ratio'; write NAME=VALUE
// UNKNOWN: error: apply-schedule: the schedule has no knob 'ratio'; it has none
// START: error: @start, op 2 (schedule.stage): the program begins with 'h.0', and the first stage begins there anyway
// NESTED: error: @nested, op 2 (schedule.stage): 'h.1.attn' is inside of func.call %b (in h.1), which is one piece of the program; name 'h.1', or run `inline-calls` first
// AGAIN: error: s.py, line 9: a stage begins with func.call %b (in h.1) already (@again, op 2 (schedule.stage))
// POLICY: error: @policy, op 2 (schedule.recompute): there is no checkpoint policy 'most'; choose one of none, full, whole, selective, products, offload, save:OP+OP, recompute:OP+OP
// BOTH: error: @both, op 3 (schedule.recompute): 'h.0' is to be computed again by policy 'whole', but is by 'full' already
// FOREIGN: error: @foreign, op 1 (transform.cast): transform.cast is no op of a schedule; a schedule holds schedule.cast, schedule.cuda_graph, schedule.decompose, schedule.expect
// LATE: error: apply-schedule: the program is a training step already; apply the schedule before `differentiate`
// OPTION: error: argument 'h.0.weight': the split 'h.0.weight:0=t' asks that axis 't' splits dimension 0, but @whole, op 3 (schedule.whole) that it splits nothing of it; ask for one of these

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
                %w0: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.0.weight"},
                %w1: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.1.weight"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %a = func.call @layer(%x, %w0) {scope = "h.0"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %b = func.call @layer(%a, %w1) {scope = "h.1"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %y = onnx.Tanh(%b) {scope = "act"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
func.func private @layer(%x: tensor<8x16xf32>, %w: tensor<16x16xf32> {dist.role = "parameter"}) -> tensor<8x16xf32> {
  %0 = onnx.MatMul(%x, %w) {scope = "h.*.attn"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}
transform.named_sequence @misspelt(%model: !transform.any_op) {
  %0 = schedule.match "g.*" in %model {schedule.by = "s.py, line 1"}
  transform.yield
}
transform.named_sequence @missing(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  %1 = schedule.match "atn" in %0
  transform.yield
}
transform.named_sequence @count(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model {count = 12 : i64}
  transform.yield
}
transform.named_sequence @parameter(%model: !transform.any_op) {
  %0 = schedule.match "h.0" in %model
  %1 = schedule.parameters "bias" of %0
  transform.yield
}
transform.named_sequence @twice(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  %1 = schedule.match "attn" in %0
  schedule.split_linear %1 {by = "columns", axis = "t", schedule.by = "s.py, line 6"}
  schedule.split_linear %1 {by = "rows", axis = "t", schedule.by = "s.py, line 7"}
  transform.yield
}
transform.named_sequence @dimension(%model: !transform.any_op) {
  %0 = schedule.match "h.0" in %model
  %1 = schedule.parameters "*" of %0
  schedule.shard %1 {dim = 2 : i64, axis = "t"}
  transform.yield
}
transform.named_sequence @linear(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.split_linear %0 {by = "rows", axis = "t"}
  transform.yield
}
transform.named_sequence @knob(%model: !transform.any_op) {
  %0 = schedule.knob "ratio" {values = [1.0, 0.5, 2.0]}
  %1 = schedule.match "h.*" in %model
  %2 = schedule.first %1 by %0
  transform.yield
}
transform.named_sequence @whole(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  %1 = schedule.parameters "weight" of %0
  schedule.whole %1 {axis = "t"}
  transform.yield
}
transform.named_sequence @start(%model: !transform.any_op) {
  %0 = schedule.match "h.0" in %model
  schedule.stage %0
  transform.yield
}
transform.named_sequence @nested(%model: !transform.any_op) {
  %0 = schedule.match "h.1.attn" in %model
  schedule.stage %0
  transform.yield
}
transform.named_sequence @again(%model: !transform.any_op) {
  %0 = schedule.match "h.1" in %model
  schedule.stage %0
  schedule.stage %0 {schedule.by = "s.py, line 9"}
  transform.yield
}
transform.named_sequence @policy(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  schedule.recompute %0 {policy = "most"}
  transform.yield
}
transform.named_sequence @both(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  schedule.recompute %0 {policy = "full"}
  schedule.recompute %0 {policy = "whole"}
  transform.yield
}
transform.named_sequence @foreign(%model: !transform.any_op) {
  %0 = "transform.cast"(%model) : (!transform.any_op) -> !transform.any_op
  transform.yield
}
