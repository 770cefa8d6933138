// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @main(%logits: tensor<2x3x5xf16>, %labels: tensor<2x3xi64>) -> (tensor<f32>, tensor<2x3x5xf16>) {
  // CHECK: %loss = train.cross_entropy %logits, %labels {divisor = 6 : i64} : (tensor<2x3x5xf16>, tensor<2x3xi64>) -> tensor<f32>
  %loss = train.cross_entropy %logits, %labels {divisor = 6 : i64} : (tensor<2x3x5xf16>, tensor<2x3xi64>) -> tensor<f32>
  // CHECK: %d = train.cross_entropy_grad %loss, %logits, %labels {ignore_index = -100 : i64} : (tensor<f32>, tensor<2x3x5xf16>, tensor<2x3xi64>) -> tensor<2x3x5xf16>
  %d = train.cross_entropy_grad %loss, %logits, %labels {ignore_index = -100 : i64} : (tensor<f32>, tensor<2x3x5xf16>, tensor<2x3xi64>) -> tensor<2x3x5xf16>
  func.return %loss, %d : tensor<f32>, tensor<2x3x5xf16>
}
