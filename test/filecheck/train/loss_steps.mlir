// RUN: distir-opt %s | distir-opt | filecheck %s

// What a cross-entropy of split classes and its gradient are made of.

func.func @main(%logits: tensor<2x3x5xf16>, %labels: tensor<2x3xi64>, %d: tensor<f32>) -> (tensor<f32>, tensor<2x3x5xf16>) {
  // CHECK: %m = train.logit_maximum %logits : (tensor<2x3x5xf16>) -> tensor<2x3xf32>
  %m = train.logit_maximum %logits : (tensor<2x3x5xf16>) -> tensor<2x3xf32>
  // CHECK: %s = train.exponential_sum %logits, %m : (tensor<2x3x5xf16>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %s = train.exponential_sum %logits, %m : (tensor<2x3x5xf16>, tensor<2x3xf32>) -> tensor<2x3xf32>
  // CHECK: %c = train.label_logit %logits, %labels : (tensor<2x3x5xf16>, tensor<2x3xi64>) -> tensor<2x3xf32>
  %c = train.label_logit %logits, %labels : (tensor<2x3x5xf16>, tensor<2x3xi64>) -> tensor<2x3xf32>
  // CHECK: %loss = train.cross_entropy_sum %m, %s, %c, %labels {classes = 5 : i64, divisor = 6 : i64}
  %loss = train.cross_entropy_sum %m, %s, %c, %labels {classes = 5 : i64, divisor = 6 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi64>) -> tensor<f32>
  // CHECK: train.cross_entropy_part_grad %d, %logits, %labels, %m, %s {divisor = 6 : i64, ignore_index = -100 : i64}
  %g = train.cross_entropy_part_grad %d, %logits, %labels, %m, %s {divisor = 6 : i64, ignore_index = -100 : i64} : (tensor<f32>, tensor<2x3x5xf16>, tensor<2x3xi64>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3x5xf16>
  func.return %loss, %g : tensor<f32>, tensor<2x3x5xf16>
}
