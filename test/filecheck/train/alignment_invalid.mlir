// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @blank(%x: tensor<9x4x5xf32>, %targets: tensor<4x3xi64>, %n: tensor<4xi64>) -> tensor<4xf32> {
  // expected-error@+1 {{train.ctc_loss: blank 5 is none of 5 classes}}
  %losses = train.ctc_loss %x, %targets, %n, %n {blank = 5 : i64} : (tensor<9x4x5xf32>, tensor<4x3xi64>, tensor<4xi64>, tensor<4xi64>) -> tensor<4xf32>
  func.return %losses : tensor<4xf32>
}
