// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},sequence-parallel" | filecheck %s --check-prefix=PASS
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},sequence-parallel,tensor-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},sequence-parallel{residuals=whole},tensor-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=WHOLE
// RUN: not distir-opt %s -p "sequence-parallel{residuals=none}" 2>&1 | filecheck %s --check-prefix=RESIDUALS

// What a layer keeps of a norm's result for its backward is asked for in parts, too.
// PASS:      func.func private @block_forward
// PASS:      %n, %{{.*}} = train.layer_norm 
// PASS:      %[[PART:.*]] = dist.constrain %n {{.*}}[{}, {t}, {}]
// PASS:      %[[KEPT:.*]] = dist.constrain %[[PART]] {{.*}}[{}, {t}, {}]
// PASS:      func.return %{{.*}}, %[[KEPT]]

// CHECK:      func.func private @block_forward
// CHECK:      %n, %{{.*}} = train.layer_norm 
// CHECK:      %[[G:.*]] = collective.all_gather %n over [t]
// CHECK:      func.return %{{.*}}, %n,
// CHECK:      func.func private @block_backward
// CHECK:      %[[N:.*]] = onnx.Reshape(%n,
// CHECK-NEXT: %[[G:.*]] = collective.all_gather %[[N]] over [t]
// CHECK-NEXT: onnx.Gemm(%[[G]],

// Whole, it is kept as the forward gathered it.
// WHOLE:      func.func private @block_forward
// WHOLE:      %[[G:.*]] = collective.all_gather %n over [t]
// WHOLE:      func.return %{{.*}}, %[[G]],
// WHOLE:      func.func private @block_backward
// WHOLE:      %[[N:.*]] = onnx.Reshape(%n
// WHOLE-NEXT: onnx.Gemm(%[[N]],

// RESIDUALS: error: sequence-parallel: there is no way to keep residuals 'none'; choose one of parts, whole

device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<2x8x16xf32> {dist.role = "input", dist.name = "x"}, %scale: tensor<16xf32> {dist.role = "parameter", dist.name = "scale"}, %bias: tensor<16xf32> {dist.role = "parameter", dist.name = "bias"}, %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<32x16xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<2x8x16xf32> {
  %0 = func.call @block(%x, %scale, %bias, %w1, %w2) : (tensor<2x8x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x32xf32>, tensor<32x16xf32>) -> tensor<2x8x16xf32>
  func.return %0 : tensor<2x8x16xf32>
}
func.func private @block(%x: tensor<2x8x16xf32>, %scale: tensor<16xf32> {dist.role = "parameter"}, %bias: tensor<16xf32> {dist.role = "parameter"}, %w1: tensor<16x32xf32> {dist.role = "parameter"}, %w2: tensor<32x16xf32> {dist.role = "parameter"}) -> tensor<2x8x16xf32> {
  %n = onnx.LayerNormalization(%x, %scale, %bias) : (tensor<2x8x16xf32>, tensor<16xf32>, tensor<16xf32>) -> tensor<2x8x16xf32>
  %h = onnx.MatMul(%n, %w1) : (tensor<2x8x16xf32>, tensor<16x32xf32>) -> tensor<2x8x32xf32>
  %a = onnx.Relu(%h) : (tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<2x8x32xf32>, tensor<32x16xf32>) -> tensor<2x8x16xf32>
  %r = onnx.Add(%x, %y) : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  func.return %r : tensor<2x8x16xf32>
}
