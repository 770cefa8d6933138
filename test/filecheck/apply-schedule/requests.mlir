// RUN: distir-opt %s -p apply-schedule | filecheck %s
// RUN: distir-opt %s -p 'apply-schedule,distribute{t=2}' | filecheck %s --check-prefix=SPLIT
// RUN: distir-opt %s -p 'apply-schedule,distribute{t=1}' | filecheck %s --check-prefix=ONE
// RUN: distir-opt %s -p 'apply-schedule,distribute{p=2 k=2}' | filecheck %s --check-prefix=STAGES
// RUN: distir-opt %s -p 'apply-schedule,differentiate{loss=mse optimizer=sgd},distribute{d=2}' | filecheck %s --check-prefix=AGAIN
// RUN: distir-opt %s -p 'apply-schedule{entry=half set="ratio=0.5"},differentiate{loss=mse optimizer=sgd},distribute{d=2}' | filecheck %s --check-prefix=HALF
// RUN: distir-opt %s -p 'apply-schedule{entry=half set="ratio=0"},differentiate{loss=mse optimizer=sgd},distribute{d=2}' | filecheck %s --check-prefix=NONE

// Columns, then rows; biases with the columns, and whole behind the rows.
// CHECK-NOT:  transform
// CHECK:      %h.0.up: {{[^%]*}}#dist.layout<@mesh, [{}, {t}]>, dist.fixed = ["t"], dist.fixed_by = {t = "s.py, line 3"}}
// CHECK-SAME: %h.0.up.bias: {{[^%]*}}#dist.layout<@mesh, [{t}]>, dist.fixed = ["t"]
// CHECK-SAME: %h.0.down: {{[^%]*}}#dist.layout<@mesh, [{t}, {}]>, dist.fixed = ["t"], dist.fixed_by = {t = "@schedule, op 5 (schedule.split_linear)"}}
// CHECK-SAME: %h.0.down.bias: {{[^%]*}}#dist.layout<@mesh>, dist.fixed = ["t"]
// CHECK-SAME: %h.1.up: {{[^%]*}}#dist.layout<@mesh, [{}, {t}]>
// A linear layer of PyTorch has its matrix the other way around.
// CHECK-SAME: %head: {{[^%]*}}#dist.layout<@mesh, [{t:4}, {}]>, dist.fixed = ["t"]
// CHECK-SAME: %norm: {{[^%]*}}#dist.layout<@mesh>, dist.fixed = ["t"]
// CHECK:      func.call @layer(%x, {{.*}}) {scope = "h.0", dist.recompute = "full", dist.recompute_by = "@schedule, op 15 (schedule.recompute)"}
// CHECK:      func.call @layer(%a, {{.*}}) {scope = "h.1", dist.stage_start = "@schedule, op 13 (schedule.stage)", dist.recompute = "full", dist.recompute_by =
// CHECK-NOT:  transform

// SPLIT: %h.0.up: tensor<16x32xf32, #dist.layout<@mesh, [{}, {t}]>>
// SPLIT-SAME: %head: tensor<16x16xf32, #dist.layout<@mesh, [{t:4}, {}]>>

// ONE-NOT: {t

// STAGES: func.func private @stage0_forward({{.*}}, %h.0.up:{{[^%]*}}, %h.0.up.bias:{{[^%]*}}, %h.0.down:{{[^%]*}}, %h.0.down.bias:{{[^%]*}}) ->

// One more copy of the function for all that is computed again, not one for each call.
// AGAIN-NOT:     func.func private @layer_backward(
// AGAIN-COUNT-2: func.func private @layer_backward{{.*}}_recompute(

// HALF:     func.call @layer_backward{{(_1)?}}(
// HALF:     func.call @layer_backward{{(_1)?}}_recompute(
// HALF:     func.func private

// NONE-NOT: _recompute

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
                %h.0.up: tensor<16x32xf32> {dist.role = "parameter", dist.name = "h.0.up.weight"},
                %h.0.up.bias: tensor<32xf32> {dist.role = "parameter", dist.name = "h.0.up.bias"},
                %h.0.down: tensor<32x16xf32> {dist.role = "parameter", dist.name = "h.0.down.weight"},
                %h.0.down.bias: tensor<16xf32> {dist.role = "parameter", dist.name = "h.0.down.bias"},
                %h.1.up: tensor<16x32xf32> {dist.role = "parameter", dist.name = "h.1.up.weight"},
                %h.1.up.bias: tensor<32xf32> {dist.role = "parameter", dist.name = "h.1.up.bias"},
                %h.1.down: tensor<32x16xf32> {dist.role = "parameter", dist.name = "h.1.down.weight"},
                %h.1.down.bias: tensor<16xf32> {dist.role = "parameter", dist.name = "h.1.down.bias"},
                %head: tensor<16x16xf32> {dist.role = "parameter", dist.name = "head.weight"},
                %norm: tensor<16xf32> {dist.role = "parameter", dist.name = "elsewhere.scale"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %a = func.call @layer(%x, %h.0.up, %h.0.up.bias, %h.0.down, %h.0.down.bias) {scope = "h.0"} : (tensor<8x16xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %b = func.call @layer(%a, %h.1.up, %h.1.up.bias, %h.1.down, %h.1.down.bias) {scope = "h.1"} : (tensor<8x16xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %head_t = onnx.Transpose(%head) {perm = [1 : i64, 0 : i64], scope = "head"} : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %c = onnx.MatMul(%b, %head_t) {scope = "head"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %y = onnx.Mul(%c, %norm) {scope = "norm"} : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
func.func private @layer(%x: tensor<8x16xf32>, %up: tensor<16x32xf32> {dist.role = "parameter"}, %up.bias: tensor<32xf32> {dist.role = "parameter"}, %down: tensor<32x16xf32> {dist.role = "parameter"}, %down.bias: tensor<16xf32> {dist.role = "parameter"}) -> tensor<8x16xf32> {
  %0 = onnx.MatMul(%x, %up) {scope = "h.*.up"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = onnx.Add(%0, %up.bias) {scope = "h.*.up"} : (tensor<8x32xf32>, tensor<32xf32>) -> tensor<8x32xf32>
  %2 = onnx.Tanh(%1) {scope = "h.*.act"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %3 = onnx.MatMul(%2, %down) {scope = "h.*.down"} : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  %4 = onnx.Add(%3, %down.bias) {scope = "h.*.down"} : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  func.return %4 : tensor<8x16xf32>
}
transform.named_sequence @schedule(%model: !transform.any_op) {
  %layers = schedule.match "h.*" in %model {count = 2 : i64}
  %up = schedule.match "up" in %layers
  schedule.split_linear %up {by = "columns", axis = "t", schedule.by = "s.py, line 3"}
  %down = schedule.match "**.down" in %model
  schedule.split_linear %down {by = "rows", axis = "t"}
  %head = schedule.match "head" in %model
  %weight = schedule.parameters "weight" of %head
  schedule.shard %weight {dim = 0 : i64, axis = "t", run = 4 : i64}
  %norm = schedule.match "n?rm" in %model
  %scale = schedule.parameters "*" of %norm
  schedule.whole %scale {axis = "t"}
  %second = schedule.match "h.1" in %model
  schedule.stage %second
  %policy = schedule.knob "policy" {values = ["full"]}
  schedule.recompute %layers by %policy
  transform.yield
}
transform.named_sequence @half(%model: !transform.any_op) {
  %layers = schedule.match "h.*" in %model
  %ratio = schedule.knob "ratio" {values = [1.0, 0.5, 0.0]}
  %half = schedule.first %layers by %ratio
  schedule.recompute %half {policy = "full"}
  transform.yield
}
