// RUN: distir-opt %s -p 'apply-schedule{entry=constant}' | filecheck %s --check-prefix=CONSTANT
// RUN: distir-opt %s -p 'apply-schedule{entry=decompose}' | filecheck %s --check-prefix=DECOMPOSE
// RUN: distir-opt %s -p 'apply-schedule{entry=place}' | filecheck %s --check-prefix=PLACE
// RUN: distir-opt %s -p 'apply-schedule{entry=graph}' | filecheck %s --check-prefix=GRAPH
// RUN: distir-opt %s -p 'apply-schedule{entry=cast}' | filecheck %s --check-prefix=CAST
// RUN: distir-opt %s -p 'apply-schedule{entry=expect}' | filecheck %s --check-prefix=EXPECT
// RUN: distir-opt %s -p 'apply-schedule{entry=require set="ratio=0.5"}' | filecheck %s --check-prefix=REQUIRE
// RUN: distir-opt %s -p 'apply-schedule{entry=expect},distribute{t=1}' | filecheck %s --check-prefix=EXPECTED
// RUN: not distir-opt %s -p 'apply-schedule{entry=other}' 2>&1 | filecheck %s --check-prefix=OTHER
// RUN: not distir-opt %s -p 'apply-schedule{entry=whole}' 2>&1 | filecheck %s --check-prefix=WHOLE
// RUN: not distir-opt %s -p 'apply-schedule{entry=outside}' 2>&1 | filecheck %s --check-prefix=OUTSIDE
// RUN: not distir-opt %s -p 'apply-schedule{entry=nothing}' 2>&1 | filecheck %s --check-prefix=NOTHING
// RUN: not distir-opt %s -p 'apply-schedule{entry=act}' 2>&1 | filecheck %s --check-prefix=ACT
// RUN: not distir-opt %s -p 'apply-schedule{entry=expect},distribute{t=2}' 2>&1 | filecheck %s --check-prefix=MORE
// RUN: not distir-opt %s -p 'apply-schedule{entry=collective}' 2>&1 | filecheck %s --check-prefix=COLLECTIVE
// RUN: not distir-opt %s -p 'apply-schedule{entry=require set="ratio=1.0"}' 2>&1 | filecheck %s --check-prefix=EXCLUDED
// RUN: not distir-opt %s -p 'apply-schedule{entry=operator}' 2>&1 | filecheck %s --check-prefix=OPERATOR

// CONSTANT: %y = func.call @half_tanh(%b) {scope = "act"}
// CONSTANT: func.func private @half_tanh(%b: tensor<8x16xf32>) -> tensor<8x16xf32> attributes {dist.compiled = "eager"} {
// CONSTANT-NEXT: %half = onnx.Constant() {value = dense<5.000000e-01> : tensor<f32>}
// CONSTANT-NEXT: %m = onnx.Mul(%b, %half)
// CONSTANT-NEXT: %y = onnx.Tanh(%m)

// One layer alone is decomposed, cast or captured; it gets a function of its own.
// DECOMPOSE: func.call @layer(%x
// DECOMPOSE: func.call @layer_1(%a
// DECOMPOSE: func.func private @layer_1(
// DECOMPOSE-NEXT: %0 = onnx.Gemm(%x, %w) {scope = "h.*"}
// DECOMPOSE-NEXT: %1 = onnx.Add(%0, %bias) {scope = "h.*"}

// PLACE: dist.constrain %y to <@mesh, [{}, {t}]> over [t] {dist.fixed_by = {t = "@place, op 2 (schedule.place)"}, scope = "act"}

// GRAPH: %a = func.call @layer_1(%x
// GRAPH: func.func private @layer(%{{.*}}) -> tensor<8x16xf32> {
// GRAPH: func.func private @layer_1({{.*}}) -> tensor<8x16xf32> attributes {dist.compiled = "cuda_graph"} {

// CAST: func.func private @layer_1(
// CAST-NEXT: onnx.Cast(%x) {to = 16 : i64, scope = "h.*"} : (tensor<8x16xf32>) -> tensor<8x16xbf16>
// CAST-NEXT: onnx.Cast(%w)
// CAST-NEXT: onnx.Cast(%bias)
// CAST-NEXT: onnx.Gemm({{.*}} -> tensor<8x16xbf16>
// CAST-NEXT: onnx.Cast({{.*}} -> tensor<8x16xf32>

// EXPECT: dist.expected = [{module = "h.1", collectives = {all_reduce = 2 : i64}, axis = "t", by = "s.py, line 4"}]
// One device communicates with nobody.
// EXPECTED-NOT: dist.expected
// EXPECTED: func.func private @layer(

// REQUIRE: %a = func.call @layer(%x, %w0, %b0) {scope = "h.0", dist.recompute = "full"
// REQUIRE-NEXT: %b = func.call @layer(%a, %w1, %b1) {scope = "h.1"}

// OTHER: error: @other, op 1 (schedule.find): the model has no ops that compute the pattern (onnx.Mul)
// WHOLE: error: @whole, op 2 (schedule.decompose): nothing in it has a decomposition (there are onnx.Mul, onnx.Tanh)
// OUTSIDE: error: @outside, op 2 (schedule.place): there is no output 7 of 'act', which has 1
// NOTHING: error: @nothing, op 2 (schedule.cuda_graph): 'act' is no call of a function, which CUDA could capture
// ACT: error: @act, op 2 (schedule.cast): act has no product, convolution or attention in f32 that could compute in bf16
// MORE: error: s.py, line 4: the forward of h.1 has 1 all_reduce over 't', expected 2 all_reduce: after onnx.Gemm (in h.*)
// COLLECTIVE: error: @collective, op 1 (schedule.expect): there is no collective 'broadcasts'; choose one of all_reduce, all_gather
// EXCLUDED: error: @require, op 2 (schedule.require): the schedule excludes ratio=1.0; choose other values
// OPERATOR: error: @operator, op 2 (schedule.replace): onnx.Tanhh: ONNX has no operator 'Tanhh'

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
                %w0: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.0.weight"},
                %b0: tensor<16xf32> {dist.role = "parameter", dist.name = "h.0.bias"},
                %w1: tensor<16x16xf32> {dist.role = "parameter", dist.name = "h.1.weight"},
                %b1: tensor<16xf32> {dist.role = "parameter", dist.name = "h.1.bias"}) -> (tensor<8x16xf32> {dist.name = "y"}) {
  %a = func.call @layer(%x, %w0, %b0) {scope = "h.0"} : (tensor<8x16xf32>, tensor<16x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %b = func.call @layer(%a, %w1, %b1) {scope = "h.1"} : (tensor<8x16xf32>, tensor<16x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  %half = onnx.Constant() {value = dense<0.5> : tensor<f32>} : () -> tensor<f32>
  %m = onnx.Mul(%b, %half) {scope = "act"} : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  %y = onnx.Tanh(%m) {scope = "act"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
func.func private @layer(%x: tensor<8x16xf32>, %w: tensor<16x16xf32>, %bias: tensor<16xf32>) -> tensor<8x16xf32> {
  %0 = onnx.Gemm(%x, %w, %bias) {scope = "h.*"} : (tensor<8x16xf32>, tensor<16x16xf32>, tensor<16xf32>) -> tensor<8x16xf32>
  func.return %0 : tensor<8x16xf32>
}

// Constants match by value.
transform.named_sequence @constant(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %half = schedule.constant 0.5 : f64
    %1 = schedule.node "onnx.Mul"(%x, %half)
    %2 = schedule.node "onnx.Tanh"(%1)
    schedule.found %2
  }
  schedule.fuse %0 {symbol = "half_tanh", backend = "eager"}
  transform.yield
}
transform.named_sequence @other(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %half = schedule.constant 0.25 : f64
    %1 = schedule.node "onnx.Mul"(%x, %half)
    schedule.found %1
  }
  transform.yield
}
transform.named_sequence @decompose(%model: !transform.any_op) {
  %0 = schedule.match "h.1" in %model
  schedule.decompose %0
  transform.yield
}
transform.named_sequence @whole(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.decompose %0
  transform.yield
}
transform.named_sequence @place(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.place %0 {index = 0 : i64, axis = "t", dim = 1 : i64}
  transform.yield
}
transform.named_sequence @outside(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.place %0 {index = 7 : i64, axis = "t"}
  transform.yield
}
transform.named_sequence @graph(%model: !transform.any_op) {
  %0 = schedule.match "h.0" in %model
  schedule.cuda_graph %0
  transform.yield
}
transform.named_sequence @nothing(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.cuda_graph %0
  transform.yield
}
transform.named_sequence @cast(%model: !transform.any_op) {
  %0 = schedule.match "h.1" in %model
  schedule.cast %0 {dtype = "bf16"}
  transform.yield
}
transform.named_sequence @act(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.cast %0 {dtype = "bf16"}
  transform.yield
}
transform.named_sequence @expect(%model: !transform.any_op) {
  %0 = schedule.match "h.1" in %model
  schedule.split_linear %0 {by = "rows", axis = "t"}
  schedule.expect %0 {collectives = {all_reduce = 2 : i64}, axis = "t", schedule.by = "s.py, line 4"}
  transform.yield
}
transform.named_sequence @collective(%model: !transform.any_op) {
  schedule.expect %model {collectives = {broadcasts = 2 : i64}, axis = "t"}
  transform.yield
}
transform.named_sequence @require(%model: !transform.any_op) {
  %ratio = schedule.knob "ratio" {values = [1.0, 0.5]}
  schedule.require %ratio {holds = [false, true]}
  %0 = schedule.match "h.*" in %model
  %1 = schedule.first %0 by %ratio
  schedule.recompute %1 {policy = "full"}
  transform.yield
}
transform.named_sequence @operator(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Tanh"(%x)
    schedule.found %1
  }
  schedule.replace %0 {op = "Tanhh"}
  transform.yield
}
