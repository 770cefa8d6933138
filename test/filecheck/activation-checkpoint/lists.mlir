// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=\"save:onnx.MatMul\"}" | filecheck %s --check-prefix=SAVE
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=\"recompute:onnx.Softmax\"}" | filecheck %s --check-prefix=RECOMPUTE
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},activation-checkpoint{policy=\"recompute:onnx.Exp+onnx.Transpose\"}" | filecheck %s --check-prefix=SEVERAL
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{policy=\"save:onnx.Matmul\"}" 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{policy=\"save:onnx.MatMul+\"}" 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not distir-opt %s -p "differentiate{loss=mse},activation-checkpoint{policy=\"save:onnx.MatMul:0.5\"}" 2>&1 | filecheck %s --check-prefix=SHARE

// Products are further results of the forward: what follows from them is not kept.
// SAVE:      %0, %1, %2 = func.call @layer_forward_saving(%x, %w0)
// SAVE:      func.call @layer_backward_recompute(%x, %2, %1,
// SAVE:      func.func private @layer_forward_saving(
// SAVE:        func.return %y, %h, %s
// SAVE:      func.func private @layer_backward_recompute(
// SAVE-SAME:   train.saved = ["argument 0", "result 2", "result 1"]
// SAVE-NEXT:   %e = onnx.Exp(%h)
// SAVE-NEXT:   %t = onnx.Transpose(%e)
// SAVE-NEXT:   %p = onnx.Softmax(%s)
// SAVE-NEXT:   onnx.Einsum(

// What the softmax took is kept instead of what it gave.
// RECOMPUTE:      func.return %y, %e, %t, %s
// RECOMPUTE:      func.func private @layer_backward_recompute(
// RECOMPUTE-NEXT:   %p = onnx.Softmax(%s)
// RECOMPUTE-NEXT:   onnx.Einsum(

// SEVERAL:      func.return %y, %p, %h
// SEVERAL:      func.func private @layer_backward_recompute(
// SEVERAL-NEXT:   %e = onnx.Exp(%h)
// SEVERAL-NEXT:   %t = onnx.Transpose(%e)
// SEVERAL-NEXT:   onnx.Einsum(

// NAME: error: activation-checkpoint: 'save:onnx.Matmul' names 'onnx.Matmul', but no differentiated function has such an op; did you mean 'onnx.MatMul'? there are onnx.Exp, onnx.MatMul, onnx.Softmax, onnx.Transpose
// EMPTY: error: activation-checkpoint: 'save:onnx.MatMul+' should list ops after the colon, such as save:onnx.MatMul+train.attention

func.func @main(%x: tensor<2x8x8xf32> {dist.role = "input", dist.name = "x"}, %w0: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w0"}) -> tensor<2x8x8xf32> {
  %0 = func.call @layer(%x, %w0) : (tensor<2x8x8xf32>, tensor<8x8xf32>) -> tensor<2x8x8xf32>
  func.return %0 : tensor<2x8x8xf32>
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
// SHARE: error: activation-checkpoint: 'save:onnx.MatMul:0.5' should list ops after the colon and nothing else; for a part of the layers, say first what the others do, such as none:1/2:save:onnx.MatMul
