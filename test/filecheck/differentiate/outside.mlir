// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none inputs=x}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{d=2 cluster=cpu}" | filecheck %s --check-prefix SPLIT
// RUN: not distir-opt %s -p "differentiate{loss=outside}" 2>&1 | filecheck %s --check-prefix OPTIMIZER
// RUN: not distir-opt %s -p "differentiate{loss=outside optimizer=none loss-scaling=dynamic}" 2>&1 | filecheck %s --check-prefix SCALING
// RUN: not distir-opt %s -p "differentiate{loss=outside optimizer=none ignore-index=0}" 2>&1 | filecheck %s --check-prefix IGNORE
// RUN: not distir-opt %s -p "differentiate{loss=outside optimizer=none inputs=z}" 2>&1 | filecheck %s --check-prefix INPUT

// The caller gives the gradients of the results that depend on parameters: not of z, which
// has none, and of y once more where it is returned a second time.
// CHECK:       func.func @main
// CHECK-SAME:  %y_gradient: tensor<4x8xf32> {dist.role = "label", dist.name = "y.gradient", dist.gradient_of = "y"}
// CHECK-NOT:   dist.gradient_of = "choice"
// CHECK-SAME:  %output2_gradient: tensor<4x8xf32> {dist.role = "label", dist.name = "output2.gradient", dist.gradient_of = "output2"}
// CHECK-SAME:  -> (tensor<4x8xf32> {dist.name = "y"}, tensor<4x8xi64> {dist.name = "choice"}, tensor<4x8xf32> {dist.name = "output2"}, tensor<8x8xf32> {dist.role = "gradient", dist.name = "w.gradient", dist.of = "w"}, tensor<4x8xf32> {dist.role = "gradient", dist.name = "x.gradient", dist.of = "x"})
// CHECK:       %[[SUM:.*]] = onnx.Add(%y_gradient, %output2_gradient)
// CHECK:       onnx.Gemm(%[[SUM]], %w)

// Results with a sample in each row, of integers too, are split like the batch.
// SPLIT:       func.func @main
// SPLIT-SAME:  -> (tensor<4x8xf32, #dist.layout<@mesh, [{d}, {}]>> {dist.name = "y"}, tensor<4x8xi64, #dist.layout<@mesh, [{d}, {}]>> {dist.name = "choice"}

// OPTIMIZER: error: differentiate: with the loss outside, the program gives gradients (the optimizer none), and the optimizer is adamw; choose none, or another loss
// SCALING: error: differentiate: a program can scale the loss that it computes itself, and the loss is outside
// IGNORE: error: differentiate: ignore_index is a class of cross_entropy, and the loss is outside; leave it out
// INPUT: error: differentiate: 'z' has type tensor<4x8xi64>, of which there is no gradient
func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %z: tensor<4x8xi64> {dist.role = "input", dist.name = "z"}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<4x8xf32> {dist.name = "y"}, tensor<4x8xi64> {dist.name = "choice"}, tensor<4x8xf32>) {
  %y = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %i = onnx.Cast(%y) {to = 7 : i64} : (tensor<4x8xf32>) -> tensor<4x8xi64>
  %choice = onnx.Add(%i, %z) : (tensor<4x8xi64>, tensor<4x8xi64>) -> tensor<4x8xi64>
  func.return %y, %choice, %y : tensor<4x8xf32>, tensor<4x8xi64>, tensor<4x8xf32>
}
