// RUN: distir-opt %s -p canonicalize-imported --split-input-file | filecheck %s

// An Identity goes, a CastLike is a Cast, parts of a sequence are results of a Split, and
// what nothing uses goes too.

func.func @main(%x: tensor<6x4xf32>, %like: tensor<2xf16>) -> (tensor<6x4xf32>, tensor<6x4xf16>, tensor<4x4xf32>, tensor<2x4xf32>) {
  %i = onnx.Identity(%x) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %c = onnx.CastLike(%x, %like) : (tensor<6x4xf32>, tensor<2xf16>) -> tensor<6x4xf16>
  %n = onnx.Constant() {value = dense<4> : tensor<i64>} : () -> tensor<i64>
  %s = onnx.SplitToSequence(%x, %n) {axis = 0 : i64} : (tensor<6x4xf32>, tensor<i64>) -> !onnx.seq<tensor<?x4xf32>>
  %0 = onnx.Constant() {value = dense<0> : tensor<i64>} : () -> tensor<i64>
  %last = onnx.Constant() {value = dense<-1> : tensor<i64>} : () -> tensor<i64>
  %a = onnx.SequenceAt(%s, %0) : (!onnx.seq<tensor<?x4xf32>>, tensor<i64>) -> tensor<4x4xf32>
  %b = onnx.SequenceAt(%s, %last) : (!onnx.seq<tensor<?x4xf32>>, tensor<i64>) -> tensor<2x4xf32>
  %r = onnx.Relu(%x) : (tensor<6x4xf32>) -> tensor<6x4xf32>
  func.return %i, %c, %a, %b : tensor<6x4xf32>, tensor<6x4xf16>, tensor<4x4xf32>, tensor<2x4xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %c = onnx.Cast(%x) {{.*}}to = 10
// CHECK-NEXT:   [[sizes:%.+]] = onnx.Constant() {value = dense<[4, 2]> : tensor<2xi64>}
// CHECK-NEXT:   [[a:%.+]], [[b:%.+]] = onnx.Split(%x, [[sizes]]) {{.*}}axis = 0
// CHECK-NEXT:   func.return %x, %c, [[a]], [[b]]

// -----

// Gradients stop at the first Identity, and a position that is known only when the program
// runs leaves the sequence as it is.

func.func @main(%x: tensor<6x4xf32>, %n: tensor<i64>) -> (tensor<6x4xf32>, tensor<?x4xf32>) {
  %i = onnx.Identity(%x) {dist.stop_gradient} : (tensor<6x4xf32>) -> tensor<6x4xf32>
  %two = onnx.Constant() {value = dense<2> : tensor<i64>} : () -> tensor<i64>
  %s = onnx.SplitToSequence(%i, %two) {axis = 0 : i64} : (tensor<6x4xf32>, tensor<i64>) -> !onnx.seq<tensor<?x4xf32>>
  %a = onnx.SequenceAt(%s, %n) : (!onnx.seq<tensor<?x4xf32>>, tensor<i64>) -> tensor<?x4xf32>
  func.return %i, %a : tensor<6x4xf32>, tensor<?x4xf32>
}

// CHECK:      %i = onnx.Identity(%x) {dist.stop_gradient}
// CHECK-NEXT: onnx.Constant
// CHECK-NEXT: onnx.SplitToSequence
// CHECK-NEXT: onnx.SequenceAt

// -----

// A TopK of four experts chooses two that differ: an expert takes at most the one token of a
// group. What other choices are is not known.

func.func @main(%scores: tensor<6x4xf32>, %k: tensor<1xi64>, %ids: tensor<6x1x2xi64>) -> (tensor<6x1x2xi64>, tensor<6x1x2xi64>) {
  %values, %indices = onnx.TopK(%scores, %k) {axis = -1 : i64} : (tensor<6x4xf32>, tensor<1xi64>) -> (tensor<6x2xf32>, tensor<6x2xi64>)
  %shape = onnx.Constant() {value = dense<[6, 1, 2]> : tensor<3xi64>} : () -> tensor<3xi64>
  %top = onnx.Reshape(%indices, %shape) : (tensor<6x2xi64>, tensor<3xi64>) -> tensor<6x1x2xi64>
  %a, %r = train.expert_places %top {experts = 4 : i64, capacity = 2 : i64} : (tensor<6x1x2xi64>) -> (tensor<6x1x2xi64>, tensor<1x6x2xi64>)
  %b, %q = train.expert_places %ids {experts = 4 : i64, capacity = 2 : i64} : (tensor<6x1x2xi64>) -> (tensor<6x1x2xi64>, tensor<1x6x2xi64>)
  func.return %a, %b : tensor<6x1x2xi64>, tensor<6x1x2xi64>
}

// CHECK: train.expert_places %top {experts = 4 : i64, capacity = 1 : i64}
// CHECK: train.expert_places %ids {experts = 4 : i64, capacity = 2 : i64}
