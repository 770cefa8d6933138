// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @main(%x: tensor<2x8xf32>, %w: tensor<3x4xui8>, %scale: tensor<3x3xf32>, %zero: tensor<3x3xui8>) {
  // expected-error@+1 {{train.group_quantized_linear: scale has shape [3, 3]; expected [3, groups], with groups of equal and even size in 8 numbers}}
  %y = train.group_quantized_linear %x, %w, %scale, %zero : (tensor<2x8xf32>, tensor<3x4xui8>, tensor<3x3xf32>, tensor<3x3xui8>) -> tensor<2x3xf32>
  func.return
}

// -----

// Not a division by zero.
func.func @main(%x: tensor<2x8xf32>, %w: tensor<3x4xui8>, %scale: tensor<3x0xf32>, %zero: tensor<3x0xui8>) {
  // expected-error@+1 {{train.group_quantized_linear: scale has shape [3, 0]; expected [3, groups]}}
  %y = train.group_quantized_linear %x, %w, %scale, %zero : (tensor<2x8xf32>, tensor<3x4xui8>, tensor<3x0xf32>, tensor<3x0xui8>) -> tensor<2x3xf32>
  func.return
}
