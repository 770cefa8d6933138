// RUN: distir-opt %s | distir-opt | filecheck %s

// CHECK: transform.named_sequence @schedule(%model: !transform.any_op) {
transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK-NEXT: %layers = schedule.match "encoder.layer.*" in %model {count = 24 : i64, schedule.by = "s.py, line 3"}
  %layers = schedule.match "encoder.layer.*" in %model {count = 24 : i64, schedule.by = "s.py, line 3"}
  // CHECK-NEXT: %ratio = schedule.knob "ratio" {values = [1.000000e+00 : f64, 5.000000e-01 : f64]}
  %ratio = schedule.knob "ratio" {values = [1.0, 0.5]}
  // CHECK-NEXT: %half = schedule.first %layers by %ratio
  %half = schedule.first %layers by %ratio
  // CHECK-NEXT: %weights = schedule.parameters "weight" of %half
  %weights = schedule.parameters "weight" of %half
  // CHECK-NEXT: schedule.shard %weights {dim = 1 : i64, axis = "t", run = 64 : i64}
  schedule.shard %weights {dim = 1 : i64, axis = "t", run = 64 : i64}
  // CHECK-NEXT: schedule.whole %weights {axis = "d"}
  schedule.whole %weights {axis = "d"}
  // CHECK-NEXT: schedule.split_linear %layers {by = "columns", axis = "t"}
  schedule.split_linear %layers {by = "columns", axis = "t"}
  // CHECK-NEXT: schedule.expect %layers {collectives = {all_reduce = 2 : i64}, axis = "t"}
  schedule.expect %layers {collectives = {all_reduce = 2 : i64}, axis = "t"}
  // CHECK-NEXT: schedule.expect %layers {collectives = {all_gather = 0 : i64}, axis = "t", backward}
  schedule.expect %layers {collectives = {all_gather = 0 : i64}, axis = "t", backward}
  // CHECK-NEXT: schedule.merge %layers {layers = ["query", "key"], merged = "qk"}
  schedule.merge %layers {layers = ["query", "key"], merged = "qk"}
  // CHECK-NEXT: schedule.merge %layers {layers = ["q", "k"], merged = "qk", groups = 8 : i64}
  schedule.merge %layers {layers = ["q", "k"], merged = "qk", groups = 8 : i64}
  // CHECK-NEXT: schedule.opaque %layers {rule = "b s d -> b s d", keep = "d", weights = {up = "f _"}, flops = "2*b*s"}
  schedule.opaque %layers {rule = "b s d -> b s d", keep = "d", weights = {up = "f _"}, flops = "2*b*s"}
  // CHECK-NEXT: schedule.match "h.[0-9]" in %model {regex}
  %regex = schedule.match "h.[0-9]" in %model {regex}
  // CHECK-NEXT: %groups = schedule.find in %layers attributes {optional} {
  // CHECK-NEXT: ^bb0(%x: !transform.any_value, %y: !transform.any_value):
  // CHECK-NEXT: %one = schedule.constant 1.000000e+00 : f64
  // CHECK-NEXT: schedule.node "onnx.Add"(%x, %one)
  // CHECK-NEXT: schedule.node "onnx.Transpose"(%y) {swaps = [-1 : i64, -2 : i64]}
  // CHECK-NEXT: schedule.node "onnx.Softmax"({{.*}}) {with = {axis = -1 : i64}}
  // CHECK-NEXT: schedule.node "onnx.MatMul"(
  // CHECK-NEXT: schedule.found
  %groups = schedule.find in %layers attributes {optional} {
  ^bb0(%x: !transform.any_value, %y: !transform.any_value):
    %one = schedule.constant 1.0 : f64
    %a = schedule.node "onnx.Add"(%x, %one)
    %b = schedule.node "onnx.Transpose"(%y) {swaps = [-1, -2]}
    %c = schedule.node "onnx.Softmax"(%a) {with = {axis = -1 : i64}}
    %d = schedule.node "onnx.MatMul"(%c, %b)
    schedule.found %d
  }
  // CHECK: schedule.fuse %groups {symbol = "f", backend = "inductor"}
  schedule.fuse %groups {symbol = "f", backend = "inductor"}
  // CHECK-NEXT: schedule.replace %groups {op = "Swish", with = {alpha = 1.000000e+00 : f32}}
  schedule.replace %groups {op = "Swish", with = {alpha = 1.0 : f32}}
  // CHECK-NEXT: schedule.kernel %groups {symbol = "k", implementation = "mine:k", options = {causal = 1 : i64}}
  schedule.kernel %groups {symbol = "k", implementation = "mine:k", options = {causal = 1 : i64}}
  // CHECK-NEXT: schedule.place %layers {index = 0 : i64, axis = "t", dim = 1 : i64}
  schedule.place %layers {index = 0 : i64, axis = "t", dim = 1 : i64}
  // CHECK-NEXT: schedule.cuda_graph %layers
  schedule.cuda_graph %layers
  // CHECK-NEXT: schedule.cast %layers {dtype = "bf16"}
  schedule.cast %layers {dtype = "bf16"}
  // CHECK-NEXT: schedule.decompose %groups
  schedule.decompose %groups
  // CHECK-NEXT: schedule.stage %layers
  schedule.stage %layers
  // CHECK-NEXT: schedule.recompute %half {policy = "full"}
  schedule.recompute %half {policy = "full"}
  // CHECK-NEXT: %policy = schedule.knob "policy" {values = ["full", "none"]}
  %policy = schedule.knob "policy" {values = ["full", "none"]}
  // CHECK-NEXT: %batch = schedule.knob "batch" {values = [96 : i64, 192 : i64], option = "batch"}
  %batch = schedule.knob "batch" {values = [96 : i64, 192 : i64], option = "batch"}
  // CHECK-NEXT: %many = schedule.knob "many" of %batch, %policy {values = {{\[\[}}1 : i64], [], [2 : i64, 1 : i64], [1 : i64]]}
  %many = schedule.knob "many" of %batch, %policy {values = [[1 : i64], [], [2 : i64, 1 : i64], [1 : i64]]}
  // CHECK-NEXT: schedule.require %batch, %many {holds = [true, true, true, false]}
  schedule.require %batch, %many {holds = [true, true, true, false]}
  // CHECK-NEXT: schedule.recompute %half by %policy
  schedule.recompute %half by %policy
  // CHECK-NEXT: transform.yield
  transform.yield
}
