// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd dropout-masks=stored}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd dropout-masks=stored},activation-checkpoint" | filecheck %s --check-prefix=AGAIN
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=DRAWN
// RUN: not distir-opt %s -p "differentiate{loss=mse dropout-masks=kept}" 2>&1 | filecheck %s --check-prefix=MASKS

// The forward of the layer gives the mask, and its backward takes that.
// CHECK:      func.func private @layer_forward({{.*}} -> (tensor<4x8xf32>, tensor<4x8xi1>
// CHECK:      %y, %[[MASK:.*]] = train.dropout %h, %counter {{.*}} -> (tensor<4x8xf32>, tensor<4x8xi1>)
// CHECK:      func.func private @layer_backward
// CHECK-NOT:  train.dropout %
// CHECK:      train.dropout_grad %{{.*}}, %{{.*}} {ratio = 2.500000e-01 : f64}

// Under recomputation nothing is stored: the mask is drawn with what it belongs to.
// AGAIN:     func.func private @layer_forward({{.*}} -> tensor<4x8xf32>
// AGAIN:     func.func private @layer_backward_recompute
// AGAIN:     %y, %[[MASK:.*]] = train.dropout %{{.*}}, %counter
// AGAIN:     train.dropout_grad %{{.*}}, %[[MASK]]

// DRAWN:     func.func private @layer_backward
// DRAWN:     train.dropout %{{.*}}, %counter
// DRAWN-NOT: train.dropout_grad

// MASKS: error: differentiate: there is no way to have masks 'kept'; choose one of drawn, stored

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"}, %step: tensor<i64> {dist.role = "state", dist.name = "optimizer.step", dist.counter}) -> tensor<4x8xf32> {
  %0 = func.call @layer(%x, %w, %step) : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  func.return %0 : tensor<4x8xf32>
}
func.func private @layer(%x: tensor<4x8xf32>, %w: tensor<8x8xf32> {dist.role = "parameter"}, %counter: tensor<i64>) -> tensor<4x8xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y = train.dropout %h, %counter {ratio = 0.25 : f64, seed = 0 : i64, stream = 7 : i64} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
