// RUN: distir import %s -o %t.mlir && filecheck %s < %t.mlir

// The order of a sort is that of its comparison: the second element less than the first is
// a descending sort, as is the first greater than the second.

// CHECK: onnx.TopK{{.*}}largest = 1
module @jit_f {
  func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = "stablehlo.sort"(%x) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.compare LT, %b, %a, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
