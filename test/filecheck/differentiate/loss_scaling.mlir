// RUN: distir-opt %s -p 'differentiate{loss=mse optimizer=sgd loss-scaling=dynamic}' | filecheck %s
// RUN: not distir-opt %s -p 'differentiate{loss=mse loss-scaling=static}' 2>&1 | filecheck %s --check-prefix=KIND

// The backward begins with a power of two. Where the squares of the gradients, divided by it, have no finite
// sum, the parameter stays and the exponent falls by one.
// CHECK: func.func @main({{.*}}, %optimizer_loss_scale: tensor<i64> {dist.role = "state", dist.name = "optimizer.loss_scale", dist.loss_scale = "exponent"}
// CHECK: %[[SCALE:.*]] = onnx.Pow(
// CHECK: %[[WIDE:.*]] = onnx.Cast({{.*}}) {to = 1 : i64} : (tensor<8x8xf16>) -> tensor<8x8xf32>
// CHECK: %[[GRADIENT:.*]] = onnx.Div(%[[WIDE]], %[[SCALE]])
// CHECK: train.sgd %{{.*}}, %[[GRADIENT]]
// CHECK: train.square_sum %[[GRADIENT]]
// CHECK: %[[FINITE:.*]] = onnx.LessOrEqual(
// CHECK: onnx.Where(%[[FINITE]], {{.*}}, %w)
// KIND: differentiate: there is no loss scaling 'static'; choose one of none, dynamic
func.func @main(
    %x: tensor<4x8xf16> {dist.role = "input", dist.name = "x"},
    %w: tensor<8x8xf16> {dist.role = "parameter", dist.name = "w"}
) -> tensor<4x8xf16> {
  %y = onnx.MatMul(%x, %w) : (tensor<4x8xf16>, tensor<8x8xf16>) -> tensor<4x8xf16>
  func.return %y : tensor<4x8xf16>
}
