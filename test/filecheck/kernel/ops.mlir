// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s -p 'differentiate{loss=mse optimizer=sgd}' | filecheck %s --check-prefix=STEP
// RUN: distir-opt %s -t torch | filecheck %s --check-prefix=TORCH

// CHECK: kernel.def @scores attributes {implementation = "mine:scores", gradient = "autograd", rule = "[b, q, d], [b, k, d] -> [b, q, k]"} {
// CHECK-NEXT: ^bb0(%q: tensor<2x8x4xf32>, %k: tensor<2x8x4xf32>):
// CHECK: kernel.result %{{.*}} : tensor<2x8x8xf32>
// CHECK: kernel.call @scores(%q, %k) {rule = "[b, q, d], [b, k, d] -> [b, q, k]"} : (tensor<2x8x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x8xf32>

// The gradient is a kernel, whose reference is the backward. It needs gradients of the
// parameter alone.
// STEP: kernel.call @scores(
// STEP: kernel.call @scores_grad(%{{.*}}) {rule = "[b, q, d], [b, k, d], [b, q, k] -> [b, k, d]", flops = "2*{{[bqdk*]+}}"}
// STEP: kernel.def @scores_grad attributes {implementation = "mine:scores", rule = "[b, q, d], [b, k, d], [b, q, k] -> [b, k, d]", flops = "2*{{[bqdk*]+}}", wrt = array<i64: 1>, autograd} {

// TORCH: kernels.call('mine', 'scores', [((2, 8, 8), torch.float32)],

kernel.def @scores attributes {implementation = "mine:scores", gradient = "autograd", rule = "[b, q, d], [b, k, d] -> [b, q, k]"} {
^bb0(%q: tensor<2x8x4xf32>, %k: tensor<2x8x4xf32>):
  %0 = onnx.Transpose(%k) {perm = [0 : i64, 2 : i64, 1 : i64]} : (tensor<2x8x4xf32>) -> tensor<2x4x8xf32>
  %1 = onnx.MatMul(%q, %0) : (tensor<2x8x4xf32>, tensor<2x4x8xf32>) -> tensor<2x8x8xf32>
  kernel.result %1 : tensor<2x8x8xf32>
}
func.func @main(%q: tensor<2x8x4xf32> {dist.role = "input", dist.name = "q"},
                %k: tensor<2x8x4xf32> {dist.role = "parameter", dist.name = "k"}) -> tensor<2x8x8xf32> {
  %0 = kernel.call @scores(%q, %k) {rule = "[b, q, d], [b, k, d] -> [b, q, k]"} : (tensor<2x8x4xf32>, tensor<2x8x4xf32>) -> tensor<2x8x8xf32>
  func.return %0 : tensor<2x8x8xf32>
}
