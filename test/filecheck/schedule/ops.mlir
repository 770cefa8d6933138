// RUN: distir-opt %s | distir-opt | filecheck %s

// CHECK: transform.named_sequence @schedule(%model: !transform.any_op) {
transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK-NEXT: %layers = schedule.match "encoder.layer.*" in %model {count = 24 : i64, schedule.by = "s.py, line 3"}
  %layers = schedule.match "encoder.layer.*" in %model {count = 24 : i64, schedule.by = "s.py, line 3"}
  // CHECK-NEXT: %ratio = schedule.knob "ratio" {values = [1.000000e+00 : f64, 5.000000e-01 : f64]}
  %ratio = schedule.knob "ratio" {values = [1.0, 0.5]}
  // CHECK-NEXT: %half = schedule.first %ratio of %layers
  %half = schedule.first %ratio of %layers
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
  // CHECK-NEXT: schedule.stage %layers
  schedule.stage %layers
  // CHECK-NEXT: schedule.recompute %half {policy = "full"}
  schedule.recompute %half {policy = "full"}
  // CHECK-NEXT: %policy = schedule.knob "policy" {values = ["full", "none"]}
  %policy = schedule.knob "policy" {values = ["full", "none"]}
  // CHECK-NEXT: schedule.recompute %half by %policy
  schedule.recompute %half by %policy
  // CHECK-NEXT: transform.yield
  transform.yield
}
