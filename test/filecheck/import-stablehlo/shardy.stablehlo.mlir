// RUN: distir import %s -o %t.mlir 2> %t.err && filecheck %s --input-file %t.mlir
// RUN: filecheck %s --check-prefix NOTE --input-file %t.err
// RUN: distir distribute %t.mlir --cluster cpu --devices 8 -d 4 -t 2 -o %t.dist.mlir && filecheck %s --check-prefix DIST --input-file %t.dist.mlir
// RUN: distir import --ignore-shardings %s -o %t.plain.mlir && filecheck %s --check-prefix PLAIN --input-file %t.plain.mlir

// Shardings of Shardy are requests. The axis that splits the batch is d, the other t; an
// axis of size 1 is no axis. A closed dimension fixes all axes, an open one those that it
// names. A donated argument without an alias is replaced by the result of its name.

// NOTE: 5 shardings in {{.*}} are requests: axis data (4) is -d, model (2) is -t;
// NOTE-SAME: -d 4 -t 2

// CHECK:      dist.name = "arg0", dist.layout = #dist.layout<@mesh, [{}, {t}]>, dist.fixed = ["d", "t"]
// CHECK-SAME: dist.name = "arg1", dist.layout = #dist.layout<@mesh, [{d}, {}]>, dist.fixed = ["d"]
// CHECK-SAME: dist.updates = "arg0"
// CHECK:      dist.constrain {{%[0-9]+}} to <@mesh, [{d}, {t}]> over [d, t]
// CHECK:      dist.constrain {{%[0-9]+}} to <@mesh> over [t]
// CHECK:      dist.constrain {{%[0-9]+}} to <@mesh, [{}, {t}]> over [d, t]

// DIST: func.func @main(%arg0: {{.*}} {dist.role = "parameter", dist.name = "arg0"}
// DIST: tensor<8x4xf32, #dist.layout<@mesh, [{d}, {t}]>>

// PLAIN-NOT: dist.layout
// PLAIN-NOT: dist.constrain
module @jit_step attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["data"=4, "model"=2, "stage"=1]> {stablehlo.mesh = {axes = [{name = "data", size = 4 : i64}, {name = "model", size = 2 : i64}]}}
  func.func public @main(%arg0: tensor<16x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"stage"}, {"model"}]>}, %arg1: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", ?}, {?}]>}) -> (tensor<16x4xf32> {jax.result_info = "result[0]", sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {"model"}]> : tensor<8x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    %6 = stablehlo.reshape %2 : (tensor<f32>) -> tensor<1xf32>
    %7 = sdy.sharding_constraint %6 <@mesh, [{?}], replicated={"model"}> : tensor<1xf32>
    %3 = stablehlo.reshape %7 : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<16x4xf32>
    return %5, %3 : tensor<16x4xf32>, tensor<f32>
  }
}
