// RUN: not distir-opt %s -p "distribute{e=2}" 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not distir-opt %s -p 'add-mesh{axes="e=3"},expert-parallel' 2>&1 | filecheck %s --check-prefix=BATCH

// NONE:  error: expert-parallel: the program has no mixture of experts: no product has a parameter with one matrix for each of several experts; leave out -e
// BATCH: error: data-parallel: the batch of 4 (dimension 0 of input 'x') cannot be split evenly over axis 'e' of size 3

func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<4x8xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
