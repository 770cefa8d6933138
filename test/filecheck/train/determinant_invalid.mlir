// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @oblong(%x: tensor<4x3x2xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{train.slogdet: x has shape [4, 3, 2], no square matrices}}
  %sign, %log = train.slogdet %x : (tensor<4x3x2xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return %log : tensor<4xf32>
}
