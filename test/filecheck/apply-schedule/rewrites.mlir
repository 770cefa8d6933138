// RUN: distir-opt %s -p 'apply-schedule{entry=fuse}' | filecheck %s --check-prefix=FUSE
// RUN: distir-opt %s -p 'apply-schedule{entry=replace}' | filecheck %s --check-prefix=REPLACE
// RUN: distir-opt %s -p 'apply-schedule{entry=merge}' | filecheck %s --check-prefix=MERGE
// RUN: distir-opt %s -p 'apply-schedule{entry=one}' | filecheck %s --check-prefix=ONE
// RUN: distir-opt %s -p 'apply-schedule{entry=regex}' | filecheck %s --check-prefix=REGEX
// RUN: not distir-opt %s -p 'apply-schedule{entry=nothing}' 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not distir-opt %s -p 'apply-schedule{entry=twice}' 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not distir-opt %s -p 'apply-schedule{entry=outside}' 2>&1 | filecheck %s --check-prefix=OUTSIDE
// RUN: not distir-opt %s -p 'apply-schedule{entry=other}' 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not distir-opt %s -p 'apply-schedule{entry=modules}' 2>&1 | filecheck %s --check-prefix=MODULES
// RUN: not distir-opt %s -p 'apply-schedule{entry=tied}' 2>&1 | filecheck %s --check-prefix=TIED
// RUN: not distir-opt %s -p 'apply-schedule{entry=gone}' 2>&1 | filecheck %s --check-prefix=GONE
// RUN: not distir-opt %s -p 'differentiate{loss=mse optimizer=sgd},apply-schedule{entry=replace}' 2>&1 | filecheck %s --check-prefix=LATE

// FUSE: func.func private @layer(
// FUSE: func.call @swish(%{{.*}}) {scope = "h.*"}
// FUSE: func.func private @swish(%{{.*}}: tensor<8x16xf32>) -> tensor<8x16xf32> attributes {dist.compiled = "inductor"} {
// FUSE-NEXT: onnx.Sigmoid(
// FUSE-NEXT: onnx.Mul(

// REPLACE-NOT: onnx.Sigmoid
// REPLACE: onnx.Swish(%{{.*}}) {scope = "h.*"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
// REPLACE-NOT: onnx.Mul

// MERGE: %h.0.qk.weight: tensor<16x32xf32> {dist.role = "parameter", dist.name = "h.0.qk.weight", dist.repacked = {dim = 1 : i64, names = ["h.0.q.weight", "h.0.k.weight"], sizes = [16 : i64, 16 : i64]}}
// MERGE: func.func private @layer(%x: tensor<8x16xf32>, %{{.*}}: tensor<16x32xf32> {{.*}})
// MERGE-NEXT: onnx.MatMul(%x, %{{.*}}) {scope = "h.*.qk"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
// MERGE: onnx.Split(

// ONE: func.call @layer_1(
// ONE: func.call @layer(
// ONE: func.func private @layer(
// ONE-NOT: func.call
// ONE: func.func private @layer_1(
// ONE: func.call @swish(

// REGEX: dist.name = "h.0.q.weight", dist.layout = #dist.layout<@mesh, [{}, {t}]>
// REGEX-NOT: dist.name = "h.0.k.weight", dist.layout

// NOTHING: error: @nothing, op 1 (schedule.find): the model has no ops that compute the pattern (onnx.Tanh); there is no onnx.Tanh in it; look at the program's ops, or make it `optional`
// TWICE: error: @twice, op 3 (schedule.fuse): these ops are not in the program any more: @twice, op 2 (schedule.fuse) consumed them
// OUTSIDE: error: @outside, op 2 (schedule.fuse): onnx.Mul %b (in h.*) uses what onnx.Add %a (in h.*) computes, a value inside of the group that ends with onnx.Sigmoid %s (in h.*)
// OTHER: error: @other, op 2 (schedule.replace): onnx.Gelu does not compute what the group does that ends with onnx.Mul %b (in h.*): on random inputs its results are
// MODULES: error: @modules, op 2 (schedule.fuse): this takes groups of ops that `find` gives, not modules
// TIED: error: @tied, op 2 (schedule.merge): 'shared' is tied: onnx.MatMul %c (in h.*.v) uses it too
// GONE: error: @gone, op 4 (schedule.split_linear): 'h.0.q' is not in the program any more: @gone, op 3 (schedule.merge) consumed it; match the modules that are there now
// LATE: error: apply-schedule: the program is a training step already; apply the schedule before `differentiate`

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
                %q0: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.0.q.weight"},
                %k0: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.0.k.weight"},
                %q1: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.1.q.weight"},
                %k1: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.1.k.weight"},
                %s: tensor<16x16xf32> {dist.role = "parameter", dist.name = "shared"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %a = func.call @layer(%x, %q0, %k0, %s) {scope = "h.0"} : (tensor<8x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %b = func.call @layer(%a, %q1, %k1, %s) {scope = "h.1"} : (tensor<8x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  func.return %b : tensor<8x16xf32>
}
func.func private @layer(%x: tensor<8x16xf32>, %q: tensor<16x16xf32>, %k: tensor<16x16xf32>, %v: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %0 = onnx.MatMul(%x, %q) {scope = "h.*.q"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %1 = onnx.MatMul(%x, %k) {scope = "h.*.k"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %2 = onnx.MatMul(%x, %v) {scope = "h.*.w"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  %a = onnx.Add(%0, %1) {scope = "h.*"} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %s = onnx.Sigmoid(%a) {scope = "h.*"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %b = onnx.Mul(%a, %s) {scope = "h.*"} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %m = onnx.Add(%b, %2) {scope = "h.*"} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %c = onnx.MatMul(%m, %v) {scope = "h.*.v"} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  func.return %c : tensor<8x16xf32>
}
transform.named_sequence @fuse(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Sigmoid"(%x)
    %2 = schedule.node "onnx.Mul"(%1, %x)
    schedule.found %2
  }
  schedule.fuse %0 {symbol = "swish", backend = "inductor"}
  transform.yield
}
transform.named_sequence @replace(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Sigmoid"(%x)
    %2 = schedule.node "onnx.Mul"(%1, %x)
    schedule.found %2
  }
  schedule.replace %0 {op = "Swish"}
  transform.yield
}
transform.named_sequence @other(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Sigmoid"(%x)
    %2 = schedule.node "onnx.Mul"(%1, %x)
    schedule.found %2
  }
  schedule.replace %0 {op = "Gelu"}
  transform.yield
}
transform.named_sequence @merge(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  schedule.merge %0 {layers = ["q", "k"], merged = "qk"}
  transform.yield
}
transform.named_sequence @one(%model: !transform.any_op) {
  %0 = schedule.match "h.0" in %model
  %1 = schedule.find in %0 {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Sigmoid"(%x)
    %2 = schedule.node "onnx.Mul"(%1, %x)
    schedule.found %2
  }
  schedule.fuse %1 {symbol = "swish", backend = "eager"}
  transform.yield
}
transform.named_sequence @regex(%model: !transform.any_op) {
  %0 = schedule.match "h.[0-9].(q|r)" in %model {regex}
  schedule.split_linear %0 {by = "columns", axis = "t"}
  transform.yield
}
transform.named_sequence @nothing(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Tanh"(%x)
    schedule.found %1
  }
  transform.yield
}
transform.named_sequence @twice(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Sigmoid"(%x)
    schedule.found %1
  }
  schedule.fuse %0 {symbol = "f", backend = "eager"}
  schedule.fuse %0 {symbol = "g", backend = "eager"}
  transform.yield
}
transform.named_sequence @outside(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value, %y: !transform.any_value):
    %1 = schedule.node "onnx.Add"(%x, %y)
    %2 = schedule.node "onnx.Sigmoid"(%1)
    schedule.found %2
  }
  schedule.fuse %0 {symbol = "f", backend = "eager"}
  transform.yield
}
transform.named_sequence @modules(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  schedule.fuse %0 {symbol = "f", backend = "eager"}
  transform.yield
}
transform.named_sequence @tied(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  schedule.merge %0 {layers = ["q", "w"], merged = "all"}
  transform.yield
}
transform.named_sequence @gone(%model: !transform.any_op) {
  %0 = schedule.match "h.*" in %model
  %1 = schedule.match "q" in %0
  schedule.merge %0 {layers = ["q", "k"], merged = "qk"}
  schedule.split_linear %1 {by = "columns", axis = "t"}
  transform.yield
}
