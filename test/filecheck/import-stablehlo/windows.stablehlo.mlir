// RUN: distir import %s -o %t.mlir && filecheck %s < %t.mlir

// The gradients of a max pooling and of a depthwise convolution's kernel (its groups are along
// the batch), and a cumulative sum, which is no pooling.

// CHECK-DAG: train.max_pool_grad
// CHECK-DAG: onnx.CumSum
// CHECK-DAG: onnx.Conv{{.*}}group = 4
module @jit_f {
  func.func public @main(%x: tensor<2x4x4x4xf32>, %dy: tensor<2x2x2x4xf32>, %dz: tensor<2x4x4x4xf32>) -> (tensor<2x4x4x4xf32>, tensor<3x3x1x4xf32>, tensor<2x4x4x4xf32>) {
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = "stablehlo.select_and_scatter"(%x, %dy, %zero) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x4x4x4xf32>, tensor<2x2x2x4xf32>, tensor<f32>) -> tensor<2x4x4x4xf32>
    %1 = stablehlo.convolution(%x, %dz) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]} {batch_group_count = 4 : i64, feature_group_count = 1 : i64} : (tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> tensor<3x3x1x4xf32>
    %2 = "stablehlo.reduce_window"(%x, %zero) <{padding = dense<[[0, 0], [3, 0], [0, 0], [0, 0]]> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 4, 1, 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x4x4x4xf32>, tensor<f32>) -> tensor<2x4x4x4xf32>
    return %0, %1, %2 : tensor<2x4x4x4xf32>, tensor<3x3x1x4xf32>, tensor<2x4x4x4xf32>
  }
}
