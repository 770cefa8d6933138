// RUN: not distir import %s -o %t.mlir 2>&1 | filecheck %s

// An op that is not known is named, with the line of the user's code.

// CHECK: stablehlo.cholesky (jit(f)/cholesky) at train.py:7 cannot be converted: it is not known
#loc1 = loc("train.py":7:3)
#loc2 = loc("jit(f)/cholesky"(#loc1))
module @jit_f {
  "func.func"() <{function_type = (tensor<3x3xf32>) -> tensor<3x3xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<3x3xf32>):
    %0 = "stablehlo.cholesky"(%arg0) <{lower = true}> : (tensor<3x3xf32>) -> tensor<3x3xf32> loc(#loc2)
    "func.return"(%0) : (tensor<3x3xf32>) -> ()
  }) : () -> ()
}
