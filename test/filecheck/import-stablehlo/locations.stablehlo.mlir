// RUN: distir import %s -o %t.mlir && cat %t.mlir | filecheck %s
// RUN: distir import %s -o %t.mlir && distir-opt %t.mlir -p 'distribute{t=2 cluster=cpu shard="w:0=t"}' --print-debuginfo | filecheck %s --check-prefix SUM

// Ops keep the lines of the user's Python: that of the innermost frame.
// CHECK: onnx.MatMul(%x, %w) {{.*}} loc("train.py":3:20)
// CHECK: onnx.Tanh({{.*}} loc("train.py":3:11)
// SUM:   collective.all_reduce {{.*}} loc("train.py":3:20)
module @jit_step {
  func.func public @main(%arg0: tensor<16x16xf32> {tf.aliasing_output = 0 : i32} loc("w"), %arg1: tensor<8x16xf32> loc("x")) -> (tensor<16x16xf32>, tensor<8x16xf32>) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32> loc(#loc3)
    %1 = stablehlo.tanh %0 : tensor<8x16xf32> loc(#loc4)
    return %arg0, %1 : tensor<16x16xf32>, tensor<8x16xf32>
  }
}
#loc1 = loc("train.py":3:20 to :25)
#loc2 = loc("train.py":3:11 to :26)
#loc5 = loc("train.py":9:1 to :4)
#loc3 = loc("jit(step)/dot_general"(callsite(#loc1 at #loc5)))
#loc4 = loc("jit(step)/tanh"(#loc2))
