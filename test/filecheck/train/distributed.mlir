// RUN: distir-opt %s -p "distribute{d=2 t=2 shard=\"wte:0=t\"}" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 shard=\"wte:0=t\"},project{rank=3}" | filecheck %s --check-prefix=RANK

// With the batch over "d" the loss and the gradients of weights are partial sums over it,
// because their rules say so. Rows of the embedding's gradient split as the embedding.

// CHECK: %loss = train.cross_entropy %logits, %labels {divisor = 256 : i64} : ({{.*}}) -> tensor<f32, #dist.layout<@mesh, partial sum {d}>>
// CHECK: %dx = train.cross_entropy_grad {{.*}} -> tensor<4x64x8xf32, #dist.layout<@mesh, [{d}, {}, {}]>>
// CHECK: %dw = train.conv_grad_weight %x, %dy {{.*}} -> tensor<6x3x3x3xf32, #dist.layout<@mesh, partial sum {d}>>
// CHECK: %dwte = train.gather_grad %h, %labels like %wte {axis = 0 : i64} : ({{.*}}) -> tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}], partial sum {d}>>
// CHECK-DAG: collective.all_reduce %loss over [d]
// CHECK-DAG: collective.all_reduce %dw over [d]
// CHECK-DAG: collective.all_reduce %dwte over [d]

// What a device does not hold is masked; the divisor stays that of all labels.
// RANK: train.cross_entropy %logits, %labels {divisor = 256 : i64} : (tensor<2x64x8xf32>, tensor<2x64xi64>) -> tensor<f32>
// RANK: collective.coordinate over [t] {mesh = @mesh, index = 1 : i64}
// RANK: %[[HELD:.*]] = onnx.Where({{.*}}, %h, {{.*}}) : (tensor<2x64x1xi1>, tensor<2x64x4xf32>, tensor<f32>) -> tensor<2x64x4xf32>
// RANK: train.gather_grad %[[HELD]], {{.*}} like %wte {axis = 0 : i64} : (tensor<2x64x4xf32>, tensor<2x64xi64>, tensor<4x4xf32>) -> tensor<4x4xf32>

func.func @main(
    %logits: tensor<4x64x8xf32> {dist.role = "input", dist.name = "logits"},
    %labels: tensor<4x64xi64> {dist.role = "input", dist.name = "labels"},
    %x: tensor<4x3x8x8xf32> {dist.role = "input", dist.name = "x"},
    %dy: tensor<4x6x8x8xf32> {dist.role = "input", dist.name = "dy"},
    %h: tensor<4x64x4xf32> {dist.role = "input", dist.name = "h"},
    %one: tensor<f32> {dist.role = "constant", dist.name = "one"},
    %wte: tensor<8x4xf32> {dist.role = "parameter", dist.name = "wte"}
) -> (tensor<f32>, tensor<4x64x8xf32>, tensor<6x3x3x3xf32>, tensor<8x4xf32>) {
  %loss = train.cross_entropy %logits, %labels {divisor = 256 : i64} : (tensor<4x64x8xf32>, tensor<4x64xi64>) -> tensor<f32>
  %dx = train.cross_entropy_grad %one, %logits, %labels {divisor = 256 : i64} : (tensor<f32>, tensor<4x64x8xf32>, tensor<4x64xi64>) -> tensor<4x64x8xf32>
  %dw = train.conv_grad_weight %x, %dy {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, group = 1 : i64} : (tensor<4x3x8x8xf32>, tensor<4x6x8x8xf32>) -> tensor<6x3x3x3xf32>
  %dwte = train.gather_grad %h, %labels like %wte {axis = 0 : i64} : (tensor<4x64x4xf32>, tensor<4x64xi64>, tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %loss, %dx, %dw, %dwte : tensor<f32>, tensor<4x64x8xf32>, tensor<6x3x3x3xf32>, tensor<8x4xf32>
}
