// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{every=2}" | filecheck %s --check-prefix=EVERY
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{layers=1}" | filecheck %s --check-prefix=LIST
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=selective}" | filecheck %s --check-prefix=SELECTIVE
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=whole}" | filecheck %s --check-prefix=WHOLE
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=whole}" -t torch | filecheck %s --check-prefix=TORCH
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=none}" | filecheck %s --check-prefix=NONE
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=\"full:1/3\"}" | filecheck %s --check-prefix=THIRD
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=\"full:2/2+0/1\"}" | filecheck %s --check-prefix=RUNS
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=products}" | filecheck %s --check-prefix=PRODUCTS
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{policy=\"full:2\"}" 2>&1 | filecheck %s --check-prefix=PART
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{policy=\"full:1/2+0/2\"}" 2>&1 | filecheck %s --check-prefix=OTHERS
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{policy=most}" 2>&1 | filecheck %s --check-prefix=POLICY
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{every=0}" 2>&1 | filecheck %s --check-prefix=ZERO
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{layers=0,3}" 2>&1 | filecheck %s --check-prefix=LAYER
// RUN: not distir-opt %s -p "inline-calls,differentiate{loss=mse},activation-checkpoint" 2>&1 | filecheck %s --check-prefix=CALLS

// Backwards are in the opposite order of the layers: of three, 0 and 2 are recomputed.
// The first one is a function of its own: its input needs no gradient.
// EVERY:      func.call @layer_backward_1_recompute(%1, %w2, %{{[0-9]+}})
// EVERY:      func.call @layer_backward_1(%0, %w1, {{(%[0-9]+, )*%[0-9]+}})
// EVERY:      func.call @layer_backward_recompute(%x, %w0, %{{[0-9]+}})

// LIST:      func.call @layer_backward_1(%{{[0-9]+}}, %w2,
// LIST:      func.call @layer_backward_1_recompute(%{{[0-9]+}}, %w1,
// LIST:      func.call @layer_backward(%x,

// Between the two products of activations everything is dropped; the exponential is kept.
// SELECTIVE-COUNT-3: func.call @layer_backward{{(_1)?}}_recompute
// SELECTIVE:     func.func private @layer_backward_recompute(
// SELECTIVE-NOT: onnx.Exp
// SELECTIVE:     onnx.MatMul(%e, %t)
// SELECTIVE:     onnx.Softmax

// No gradient needs the last product; `whole` computes it again nevertheless, as PyTorch does.
// WHOLE:     func.func private @layer_backward_recompute(
// WHOLE:     onnx.MatMul(%p, %e) {dist.recomputed, dist.kept}

// The PyTorch package does so, too.
// TORCH:      def layer_backward_recompute(self,
// TORCH:      p = F.softmax(s, -1)
// TORCH:      y = p @ e
// TORCH-NEXT: del y

// NONE-NOT: recompute

// One of three layers, the first, whose backward comes last.
// THIRD:      func.call @layer_backward_1(%{{[0-9]+}}, %w2,
// THIRD:      func.call @layer_backward_1(%{{[0-9]+}}, %w1,
// THIRD:      func.call @layer_backward_recompute(%x, %w0,

// All of the first two layers, and none of the last one.
// RUNS:      func.call @layer_backward_1(%{{[0-9]+}}, %w2,
// RUNS:      func.call @layer_backward_1_recompute(%{{[0-9]+}}, %w1,
// RUNS:      func.call @layer_backward_recompute(%x, %w0,

// The transpose is computed again; what follows from products alone by way of a function is kept.
// PRODUCTS:      func.func private @layer_backward_recompute(
// PRODUCTS-NEXT:   %t = onnx.Transpose(%e)
// PRODUCTS-NEXT:   onnx.Einsum(%gradient

// PART: error: activation-checkpoint: 'full:2' should say after the colon for which part of the layers the policy 'full' holds, a number above 0 and up to 1, such as full:0.5, or for how many of each run of layers, such as full:4/6+0/6
// OTHERS: error: activation-checkpoint: 'full:1/2+0/2' is for 4 layers, but the program has 3
// POLICY: error: activation-checkpoint: there is no checkpoint policy 'most'; choose one of none, full, whole, selective, products, offload, save:OP+OP, recompute:OP+OP
// ZERO: error: activation-checkpoint: `every` must be at least 1
// LAYER: error: activation-checkpoint: there is no layer 3; the program has 3
// CALLS: error: activation-checkpoint: the program calls no differentiated function; run outline-repeats and differentiate first

func.func @main(%x: tensor<2x8x8xf32> {dist.role = "input", dist.name = "x"}, %w0: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w0"}, %w1: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<2x8x8xf32> {
  %0 = func.call @layer(%x, %w0) : (tensor<2x8x8xf32>, tensor<8x8xf32>) -> tensor<2x8x8xf32>
  %1 = func.call @layer(%0, %w1) : (tensor<2x8x8xf32>, tensor<8x8xf32>) -> tensor<2x8x8xf32>
  %2 = func.call @layer(%1, %w2) : (tensor<2x8x8xf32>, tensor<8x8xf32>) -> tensor<2x8x8xf32>
  func.return %2 : tensor<2x8x8xf32>
}
func.func private @layer(%x: tensor<2x8x8xf32> {dist.role = "input"}, %w: tensor<8x8xf32> {dist.role = "parameter"}) -> tensor<2x8x8xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<2x8x8xf32>, tensor<8x8xf32>) -> tensor<2x8x8xf32>
  %e = onnx.Exp(%h) : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %t = onnx.Transpose(%e) {perm = [0 : i64, 2 : i64, 1 : i64]} : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %s = onnx.MatMul(%e, %t) : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %p = onnx.Softmax(%s) : (tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  %y = onnx.MatMul(%p, %e) : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  func.return %y : tensor<2x8x8xf32>
}
