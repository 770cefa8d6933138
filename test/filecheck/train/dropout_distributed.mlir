// RUN: distir-opt %s -p "distribute{d=2 t=2 shard=\"w:1=t\"}" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 shard=\"w:1=t\"},project{rank=3}" | filecheck %s --check-prefix=RANK
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=TRAIN

// Each device draws the numbers of the elements that it holds.
// CHECK: %y = train.dropout %h, %step {{.*}} : (tensor<4x8xf32, #dist.layout<@mesh, [{d}, {t}]>>, tensor<i64, #dist.layout<@mesh>>) -> tensor<4x8xf32, #dist.layout<@mesh, [{d}, {t}]>>

// RANK: %[[D:.*]] = collective.coordinate over [d] {{{.*}}index = 1 : i64}
// RANK: %[[T:.*]] = collective.coordinate over [t] {{{.*}}index = 1 : i64}
// RANK: train.dropout %h, %step at(%[[D]], %[[T]]) {ratio = 1.000000e-01 : f64, seed = 0 : i64, stream = 7 : i64, global_shape = array<i64: 4, 8>, splits = [array<i64: 0, 2, 2>, array<i64: 1, 2, 4>]} : (tensor<2x4xf32>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<2x4xf32>

// The backward draws them again; the step that counts them goes on.
// TRAIN: func.func @main({{.*}}%step: tensor<i64> {dist.role = "state", dist.name = "optimizer.step", dist.counter}) -> ({{.*}}tensor<i64> {dist.name = "optimizer.step", dist.updates = "optimizer.step"}
// TRAIN: %y = train.dropout %h, %step
// TRAIN: train.dropout %{{.*}}, %step {ratio = 1.000000e-01 : f64, seed = 0 : i64, stream = 7 : i64}

func.func @main(
    %x: tensor<4x6xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<6x8xf32> {dist.role = "parameter", dist.name = "w"},
    %step: tensor<i64> {dist.role = "state", dist.name = "optimizer.step", dist.counter}
) -> tensor<4x8xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %y = train.dropout %h, %step {ratio = 0.1 : f64, seed = 0 : i64, stream = 7 : i64} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
