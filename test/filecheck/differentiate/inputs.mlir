// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=none inputs=x,labels}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=none inputs=x},distribute{d=2 cluster=cpu}" | filecheck %s --check-prefix SPLIT
// RUN: not distir-opt %s -p "differentiate{loss=mse inputs=x}" 2>&1 | filecheck %s --check-prefix OPTIMIZER
// RUN: not distir-opt %s -p "differentiate{loss=mse optimizer=none inputs=w}" 2>&1 | filecheck %s --check-prefix NAME
// RUN: not distir-opt %s -p "differentiate{loss=mse optimizer=none inputs=y}" 2>&1 | filecheck %s --check-prefix NAME2

// Gradients of inputs and labels; w is frozen, and no parameter is trained.
// CHECK:       func.func @main
// CHECK-SAME:  -> (tensor<f32> {dist.role = "loss", dist.name = "loss"}, tensor<4x8xf32> {dist.role = "gradient", dist.name = "x.gradient", dist.of = "x"}, tensor<4x8xf32> {dist.role = "gradient", dist.name = "labels.gradient", dist.of = "labels"})

// The gradient of an input has the input's layout.
// SPLIT:       func.func @main
// SPLIT-SAME:  -> ({{.*}}, tensor<4x8xf32, #dist.layout<@mesh, [{d}, {}]>> {dist.role = "gradient", dist.name = "x.gradient", dist.of = "x"})

// OPTIMIZER: error: differentiate: gradients of inputs are for the optimizer none, and it is adamw
// NAME: error: differentiate: the program has no input or label 'w', of which a gradient is wanted
// NAME2: error: differentiate: the program has no input or label 'y', of which a gradient is wanted
func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w", dist.frozen}) -> tensor<4x8xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
