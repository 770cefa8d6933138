// RUN: not distir-opt %s -p "differentiate{loss=hinge}" 2>&1 | filecheck %s --check-prefix=LOSS
// RUN: not distir-opt %s -p "differentiate{optimizer=shampoo}" 2>&1 | filecheck %s --check-prefix=OPTIMIZER
// RUN: not distir-opt %s -p "differentiate{loss=none}" 2>&1 | filecheck %s --check-prefix=SCALAR
// RUN: not distir-opt %s -p "differentiate{output=2}" 2>&1 | filecheck %s --check-prefix=OUTPUT
// RUN: not distir-opt %s -p "differentiate{output=1}" 2>&1 | filecheck %s --check-prefix=CLASSES
// RUN: not distir-opt %s -p "differentiate{loss=mse output=1}" 2>&1 | filecheck %s --check-prefix=INDEPENDENT
// RUN: not distir-opt %s -p "differentiate{loss=mse ignore-index=1}" 2>&1 | filecheck %s --check-prefix=IGNORE
// RUN: not distir-opt %s -p "differentiate" 2>&1 | filecheck %s --check-prefix=RULE

// LOSS: error: differentiate: there is no loss 'hinge'; choose one of cross_entropy, mse, none
// OPTIMIZER: error: differentiate: there is no optimizer 'shampoo'; choose one of adamw, adam, sgd, adafactor, lamb, lion, muon, none
// SCALAR: error: differentiate: the loss must be a scalar, but result 0 of onnx.Hardmax %y (in router.choice) has type tensor<4x4xf32>; choose a loss, or another output
// OUTPUT: error: differentiate: the program has 2 results, there is no output 2
// CLASSES: error: differentiate: cross_entropy needs logits [..., classes], but result 1 has type tensor<4xf32>
// INDEPENDENT: error: differentiate: the loss does not depend on any parameter: result 1, of type tensor<4xf32>
// IGNORE: error: differentiate: ignore_index is a class of cross_entropy, and the loss is mse; leave it out
// RULE: error: {{.*}}onnx.Hardmax{{.*}}router.choice
// RULE-SAME: gradient

func.func @main(%x: tensor<4x4xf32> {dist.role = "input", dist.name = "x"}, %z: tensor<4xf32> {dist.role = "input", dist.name = "z"}, %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<4x4xf32>, tensor<4xf32>) {
  %h = onnx.MatMul(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %y = onnx.Hardmax(%h) {scope = "router.choice"} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  func.return %y, %z : tensor<4x4xf32>, tensor<4xf32>
}
