// RUN: not distir-opt %s -p "differentiate{loss=mse}" 2>&1 | filecheck %s
// RUN: not distir-opt %s -p "train-dropout{seed=4294967296}" 2>&1 | filecheck %s --check-prefix=SEED

// SEED: error: train-dropout: the seed is 4294967296; expected a number of 32 bits

// CHECK: error: onnx.Dropout %d (in drop) is told at run time whether it is in training mode; export the model in one mode
func.func @main(%x: tensor<8x4xf32> {dist.role = "input"}, %on: tensor<i1> {dist.role = "input"}, %w: tensor<4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x4xf32> {
  %ratio = onnx.Constant() {value = dense<0.25> : tensor<f32>} : () -> tensor<f32>
  %p = onnx.Mul(%x, %w) : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
  %d = onnx.Dropout(%p, %ratio, %on) {scope = "drop"} : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
  func.return %d : tensor<8x4xf32>
}
