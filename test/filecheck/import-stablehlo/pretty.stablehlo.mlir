// RUN: distir import %s -o %t.mlir && filecheck %s --input-file %t.mlir

// The pretty form, as JAX prints it: the bias is not written out, the donated argument is
// a parameter, and the sum is a loss.

// CHECK:      func.func @main(%arg0: tensor<4x3xf32> {dist.role = "parameter", dist.name = "arg0"}
// CHECK-SAME: %arg1: tensor<2x4xf32> {dist.role = "input", dist.name = "arg1"}
// CHECK-SAME: dist.updates = "arg0"
// CHECK-SAME: dist.role = "loss"
// CHECK:      [[Y:%[0-9]+]] = onnx.MatMul(%arg1, %arg0)
// CHECK:      onnx.ReduceSum([[Y]]
module @jit_step {
  func.func public @main(%arg0: tensor<4x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<2x4xf32>) -> (tensor<4x3xf32> {jax.result_info = "result[0]"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %3 = stablehlo.subtract %arg0, %2 : tensor<4x3xf32>
    return %3, %1 : tensor<4x3xf32>, tensor<f32>
  }
}
