// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=none},data-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s

// With the batch split, only sums over it are exchanged: no activation is gathered.
device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK-NOT: all_gather
// CHECK: collective.all_reduce %{{.*}} over [d] {{.*}}: tensor<6xf32, #dist.layout<@mesh, partial sum {d}>>
// CHECK: train.batch_norm_variance %{{.*}} -> tensor<6xf32, #dist.layout<@mesh, partial sum {d}>>
// CHECK: collective.all_reduce %{{.*}} over [d] {{.*}}: tensor<6xf32, #dist.layout<@mesh, partial sum {d}>>
// CHECK: train.batch_norm_sums {{.*}} -> (tensor<6xf32, #dist.layout<@mesh, partial sum {d}>>, tensor<6xf32, #dist.layout<@mesh, partial sum {d}>>)
// CHECK-NOT: all_gather
func.func @main(%x: tensor<4x6x2xf32> {dist.role = "input", dist.name = "x"}, %scale: tensor<6xf32> {dist.role = "parameter", dist.name = "scale"}, %bias: tensor<6xf32> {dist.role = "parameter", dist.name = "bias"}, %m: tensor<6xf32> {dist.role = "state", dist.name = "m"}, %v: tensor<6xf32> {dist.role = "state", dist.name = "v"}) -> tensor<4x6x2xf32> {
  %y, %mean, %variance = onnx.BatchNormalization(%x, %scale, %bias, %m, %v) {training_mode = 1 : i64, scope = "bn"} : (tensor<4x6x2xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>, tensor<6xf32>) -> (tensor<4x6x2xf32>, tensor<6xf32>, tensor<6xf32>)
  func.return %y : tensor<4x6x2xf32>
}
