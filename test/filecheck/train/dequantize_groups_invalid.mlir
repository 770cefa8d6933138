// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @main(%q: tensor<3x3xui8>, %scale: tensor<3x1xf32>, %zero: tensor<3x1xui8>) {
  // expected-error@+1 {{train.dequantize_groups: x has shape [3, 7]; expected rows of an even number of elements}}
  %x = train.dequantize_groups %q, %scale, %zero : (tensor<3x3xui8>, tensor<3x1xf32>, tensor<3x1xui8>) -> tensor<3x7xf32>
  func.return
}

// -----

func.func @main(%q: tensor<3x4xi8>, %scale: tensor<3x2xf32>, %zero: tensor<3x2xui8>) {
  // expected-error@+1 {{train.dequantize_groups: quantized has elements of type i8, expected ui8}}
  %x = train.dequantize_groups %q, %scale, %zero : (tensor<3x4xi8>, tensor<3x2xf32>, tensor<3x2xui8>) -> tensor<3x8xf32>
  func.return
}

// -----

func.func @main(%q: tensor<3x4xui8>, %scale: tensor<3x3xf32>, %zero: tensor<3x3xui8>) {
  // expected-error@+1 {{train.dequantize_groups: scale has shape [3, 3]; expected [3, groups], with groups of equal and even size in 8 numbers}}
  %x = train.dequantize_groups %q, %scale, %zero : (tensor<3x4xui8>, tensor<3x3xf32>, tensor<3x3xui8>) -> tensor<3x8xf32>
  func.return
}

// -----

func.func @main(%q: tensor<3x4xui8>, %scale: tensor<3x2xf32>, %zero: tensor<3x1xui8>) {
  // expected-error@+1 {{train.dequantize_groups: zero has shape [3, 1], expected [3, 2]}}
  %x = train.dequantize_groups %q, %scale, %zero : (tensor<3x4xui8>, tensor<3x2xf32>, tensor<3x1xui8>) -> tensor<3x8xf32>
  func.return
}
