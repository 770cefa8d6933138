// RUN: distir-opt %s -p "sequence-parallel" | filecheck %s --check-prefix=PASS
// RUN: distir-opt %s -p "tensor-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=TENSOR
// RUN: distir-opt %s -p "sequence-parallel,tensor-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},sequence-parallel,tensor-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=STEP

// Megatron's sequence parallelism: with the input of the norm split along the sequence,
// the all-reduce behind the row-split matrix becomes a reduce-scatter, and the activations
// are gathered behind the norm.

// PASS:      %[[X:.*]] = dist.constrain %r {{.*}}[{}, {t}, {}]
// PASS-NEXT: onnx.LayerNormalization(%[[X]],

// TENSOR:     collective.all_reduce
// TENSOR-NOT: collective
// TENSOR:     onnx.LayerNormalization

// CHECK:      %[[Y:.*]] = onnx.MatMul({{.*}}, %w2) {{.*}}partial sum {t}>>
// CHECK:      collective.reduce_scatter {{.*}} over [t]
// CHECK-NOT:  all_reduce
// CHECK:      %[[N:.*]] = onnx.LayerNormalization({{.*}} -> tensor<2x8x16xf32, #dist.layout<@mesh, [{}, {t}, {}]>>
// CHECK:      %[[G:.*]] = collective.all_gather %[[N]] over [t]
// CHECK:      onnx.MatMul(%[[G]], %w3)

// The norm's own gradients are partial sums over the parts of the sequence.
// STEP:     train.layer_norm_grad{{.*}}partial sum {t}>>
// STEP:     collective.all_reduce

device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<2x8x16xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<32x16xf32> {dist.role = "parameter", dist.name = "w2"}, %scale: tensor<16xf32> {dist.role = "parameter", dist.name = "scale"}, %bias: tensor<16xf32> {dist.role = "parameter", dist.name = "bias"}, %w3: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w3"}, %w4: tensor<32x16xf32> {dist.role = "parameter", dist.name = "w4"}) -> tensor<2x8x16xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<2x8x16xf32>, tensor<16x32xf32>) -> tensor<2x8x32xf32>
  %a = onnx.Relu(%h) : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<2x8x32xf32>, tensor<32x16xf32>) -> tensor<2x8x16xf32>
  %r = onnx.Add(%x, %y) : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %n = onnx.LayerNormalization(%r, %scale, %bias) {scope = "norm"} : (tensor<2x8x16xf32>, tensor<16xf32>, tensor<16xf32>) -> tensor<2x8x16xf32>
  %h2 = onnx.MatMul(%n, %w3) : (tensor<2x8x16xf32>, tensor<16x32xf32>) -> tensor<2x8x32xf32>
  %a2 = onnx.Relu(%h2) : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %y2 = onnx.MatMul(%a2, %w4) : (tensor<2x8x32xf32>, tensor<32x16xf32>) -> tensor<2x8x16xf32>
  %r2 = onnx.Add(%r, %y2) : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  func.return %r2 : tensor<2x8x16xf32>
}
