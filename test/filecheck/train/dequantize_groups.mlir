// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

// Two experts of three rows of eight numbers, in groups of four.
func.func @main(%q: tensor<2x3x4xui8>, %scale: tensor<2x3x2xf32>, %zero: tensor<2x3x2xui8>) -> tensor<2x3x8xf32> {
  // CHECK: %x = train.dequantize_groups %q, %scale, %zero : (tensor<2x3x4xui8>, tensor<2x3x2xf32>, tensor<2x3x2xui8>) -> tensor<2x3x8xf32>
  %x = train.dequantize_groups %q, %scale, %zero : (tensor<2x3x4xui8>, tensor<2x3x2xf32>, tensor<2x3x2xui8>) -> tensor<2x3x8xf32>
  func.return %x : tensor<2x3x8xf32>
}
