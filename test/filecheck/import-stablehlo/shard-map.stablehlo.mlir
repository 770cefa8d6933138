// RUN: not distir import %s -o %t.mlir 2>&1 | filecheck %s

// What computes on each device by itself has a layout already, and is refused by name.

// CHECK: sdy.manual_computation at train.py:9 cannot be converted: it is shard_map
#loc1 = loc("train.py":9:3)
module @jit_f {
  "sdy.mesh"() <{mesh = #sdy.mesh<["d"=2]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{function_type = (tensor<4xf32>) -> tensor<4xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<4xf32>):
    %0 = "sdy.manual_computation"(%arg0) <{in_shardings = #sdy.sharding_per_value<[<@mesh, [{"d"}]>]>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"d"}]>]>, manual_axes = #sdy<manual_axes{"d"}>}> ({
    ^bb0(%arg1: tensor<2xf32>):
      "sdy.return"(%arg1) : (tensor<2xf32>) -> ()
    }) : (tensor<4xf32>) -> tensor<4xf32> loc(#loc1)
    "func.return"(%0) : (tensor<4xf32>) -> ()
  }) : () -> ()
}
