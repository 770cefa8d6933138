// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

// A mask as other compilers write it: hexadecimal digits are the bits of a float.

// CHECK: value = dense<0xFF800000> : tensor<f32>
// CHECK: value = dense<[0x7F800000, 0x7FC00000]> : tensor<2xf32>
// CHECK: value = dense<[16777216.0, -0.000000e+00]> : tensor<2xf32>
// CHECK: alpha = 0x7F800000 : f32

func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %c = onnx.Constant() {value = dense<0xFF800000> : tensor<f32>} : () -> tensor<f32>
  %d = onnx.Constant() {value = dense<"0x0000807F0000C07F"> : tensor<2xf32>} : () -> tensor<2xf32>
  %e = onnx.Constant() {value = dense<[0x4B800000, -0.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %y = onnx.Max(%x, %c, %d, %e) : (tensor<2xf32>, tensor<f32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  %z = onnx.LeakyRelu(%y) {alpha = 0x7F800000 : f32} : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y, %z : tensor<2xf32>, tensor<2xf32>
}
