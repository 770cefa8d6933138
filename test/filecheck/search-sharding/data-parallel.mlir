// RUN: distir build mlp --layers 6 --d-model 128 --batch 4096 --training --loss mse -o %t.mlir
// RUN: sed "/^builtin.module/r %s" %t.mlir | distir-opt -p 'search-sharding{axes="d=4" profile=V100}' | filecheck %s
// RUN: sed "/^builtin.module/r %s" %t.mlir | distir-opt -p 'search-sharding{axes="d=4"}' | filecheck %s --check-prefix=SHEETS

// With the profile small tensors are updated and sent many at once, which the sum that is
// minimised does not know: the layouts that it finds take longer than data parallelism.

// CHECK: dist.notes = ["search-sharding: data parallelism, which takes {{.*}} s as simulated; the layouts found take
// CHECK: func.func @main(%input: tensor<4096x128xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK: collective.all_reduce

// By the data sheets they do not.
// SHEETS: dist.notes = ["search-sharding: {{[0-9]}}

device.cluster @box {
  device.kind @V100 on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.57e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @nvlink spans 4 {bandwidth = 1.5e11 : f64, latency = 5.0e-6 : f64}
}
