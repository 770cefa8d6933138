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

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.find: the pattern has a dead end: nothing uses what its "onnx.Tanh" computes
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Tanh"(%x)
    %2 = schedule.node "onnx.Exp"(%x)
    schedule.found %2
  }
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.find: its pattern computes nothing; what it finds must be the result of a schedule.node
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    schedule.found %x
  }
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.find: the pattern does not use its argument 1
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value, %y: !transform.any_value):
    %1 = schedule.node "onnx.Tanh"(%x)
    schedule.found %1
  }
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.fuse: backend = "nvcc"; write eager or inductor
  schedule.fuse %model {symbol = "f", backend = "nvcc"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.fuse: "a b" is no name of a function; use letters, digits and _
  schedule.fuse %model {symbol = "a b", backend = "eager"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.merge of {{.*}}: name two or more different layers
  schedule.merge %model {layers = ["q", "q"], merged = "a"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.expect: all_reduce = "two" is no number of collectives
  schedule.expect %model {collectives = {all_reduce = "two"}, axis = "t"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.knob "batch" {values = [96, 192]}
  // CHECK: schedule.knob "ratio" has 1 cases, but the knobs that it depends on have 2 combinations
  %1 = schedule.knob "ratio" of %0 {values = [[1.0]]}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.knob "batch" {values = [96, 192]}
  // CHECK: schedule.knob "ratio": a knob that depends on others has a list of values for each combination of theirs
  %1 = schedule.knob "ratio" of %0 {values = [1.0, 0.5]}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.knob "ratio": a value is a number or a text
  %0 = schedule.knob "ratio" {values = [unit]}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.knob "size": option = "size"; write one of batch, d, t, p, k, zero
  %0 = schedule.knob "size" {values = [1], option = "size"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.knob "batch" {values = [96, 192]}
  %1 = schedule.knob "ratio" {values = [1.0, 0.5]}
  // CHECK: schedule.require has 3 cases, but the knobs that it depends on have 2 x 2 combinations
  schedule.require %0, %1 {holds = [true, false, true]}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.cast: dtype = "f8"; write bf16 or f16
  schedule.cast %model {dtype = "f8"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.place: `index` and `dim` count from 0
  schedule.place %model {index = -1 : i64, axis = "t"}
  transform.yield
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  // CHECK: schedule.opaque: weights has 1 : i64 for 'up'; expected a text such as "f _"
  schedule.opaque %model {rule = "b -> b", weights = {up = 1 : i64}}
  transform.yield
}
