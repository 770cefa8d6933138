// RUN: not distir import %s -o %t.mlir 2>&1 | filecheck %s

// The gradient of a pooling with minima is refused.

// CHECK: stablehlo.select_and_scatter cannot be converted: it selects elements other than the largest ones
module @jit_f {
  func.func public @main(%x: tensor<2x4x4x4xf32>, %dy: tensor<2x2x2x4xf32>) -> tensor<2x4x4x4xf32> {
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = "stablehlo.select_and_scatter"(%x, %dy, %zero) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.compare LE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %3 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x4x4x4xf32>, tensor<2x2x2x4xf32>, tensor<f32>) -> tensor<2x4x4x4xf32>
    return %0 : tensor<2x4x4x4xf32>
  }
}
