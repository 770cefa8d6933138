// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @cubic(%dy: tensor<2x3x6x7x2xf32>, %grid: tensor<2x6x7x2x3xf32>) -> tensor<2x3x4x5x6xf32> {
  // expected-error@+1 {{train.grid_sample_grad_input: 'cubic' is none of linear, nearest}}
  %dx = train.grid_sample_grad_input %dy, %grid {mode = "cubic", padding_mode = "zeros"} : (tensor<2x3x6x7x2xf32>, tensor<2x6x7x2x3xf32>) -> tensor<2x3x4x5x6xf32>
  func.return %dx : tensor<2x3x4x5x6xf32>
}
