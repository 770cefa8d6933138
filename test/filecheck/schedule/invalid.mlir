// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.split_linear: by = "diagonals"; write columns or rows
  schedule.split_linear %model {by = "diagonals", axis = "t"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.recompute takes a `policy`, or a knob that says it
  schedule.recompute %model
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.knob "ratio" has no values
  %0 = schedule.knob "ratio" {values = []}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.parameters "weight" of %model
  // CHECK: schedule.shard: `dim` counts from 0, and `run` from 1 element
  schedule.shard %0 {dim = -1 : i64, axis = "t"}
  transform.yield
}
