// RUN: distir import %s -o %t.mlir 2> %t.err && filecheck %s --input-file %t.mlir
// RUN: filecheck %s --check-prefix NOTE --input-file %t.err

// Shardings of GSPMD name no axes: their mesh is the coarsest that has them all. Here the
// devices of a column are neighbours, so that the second axis, t, is the inner one.

// NOTE: 4 shardings in {{.*}} are requests: axis axis0 (4) is -d, axis1 (2) is -t;

// CHECK:      dist.name = "arg0", dist.layout = #dist.layout<@mesh, [{}, {t}]>, dist.fixed = ["d", "t"]
// CHECK-SAME: dist.name = "arg1", dist.layout = #dist.layout<@mesh, [{d}, {}]>, dist.fixed = ["d", "t"]
// CHECK-SAME: dist.updates = "arg0"
// CHECK:      dist.constrain {{%[0-9]+}} to <@mesh, [{d}, {t}]> over [d, t]
// CHECK:      dist.constrain {{%[0-9]+}} to <@mesh, [{t}, {}]> over [t]
module @jit_step {
  "func.func"() <{arg_attrs = [{jax.buffer_donor = true, mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"}, {mhlo.sharding = "{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"}], function_type = (tensor<16x4xf32>, tensor<8x16xf32>) -> (tensor<16x4xf32>, tensor<8x4xf32>), res_attrs = [{jax.result_info = "result[0]"}, {jax.result_info = "result[1]"}], sym_name = "main"}> ({
  ^bb0(%arg0: tensor<16x4xf32>, %arg1: tensor<8x16xf32>):
    %0 = "stablehlo.dot_general"(%arg1, %arg0) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %1 = "stablehlo.custom_call"(%0) <{backend_config = "", call_target_name = "Sharding"}> {mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = "stablehlo.negate"(%arg0) : (tensor<16x4xf32>) -> tensor<16x4xf32>
    %3 = "stablehlo.custom_call"(%2) <{backend_config = "unspecified_dims=[1]", call_target_name = "Sharding"}> {mhlo.sharding = "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"} : (tensor<16x4xf32>) -> tensor<16x4xf32>
    "func.return"(%3, %1) : (tensor<16x4xf32>, tensor<8x4xf32>) -> ()
  }) : () -> ()
}
