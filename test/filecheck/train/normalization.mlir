// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

func.func @main(%dy: tensor<2x8xf16>, %x: tensor<2x8xf16>, %scale: tensor<8xf16>) {
  // CHECK: %s = train.softmax_grad %dy, %x {axis = -1 : i64} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  // GENERIC: %s = "train.softmax_grad"(%dy, %x) <{axis = -1 : i64}> : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  %s = train.softmax_grad %dy, %x {axis = -1 : i64} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  // CHECK-NEXT: %t = train.log_softmax_grad %dy, %x {scope = "h.0", axis = 0 : i64} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  %t = train.log_softmax_grad %dy, %x {axis = 0 : i64, scope = "h.0"} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  // CHECK-NEXT: %y, %mean, %inverse = train.layer_norm %x, %scale, %scale {axis = 1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x8xf16>, tensor<8xf16>, tensor<8xf16>) -> (tensor<2x8xf16>, tensor<2x1xf32>, tensor<2x1xf32>)
  // GENERIC: %y, %mean, %inverse = "train.layer_norm"(%x, %scale, %scale) <{axis = 1 : i64, epsilon = 1.000000e-05 : f32}>
  %y, %mean, %inverse = train.layer_norm %x, %scale, %scale {axis = 1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x8xf16>, tensor<8xf16>, tensor<8xf16>) -> (tensor<2x8xf16>, tensor<2x1xf32>, tensor<2x1xf32>)
  // CHECK-NEXT: %dx, %dscale, %dbias = train.layer_norm_grad %dy, %x, %scale, %mean, %inverse {axis = 1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>, tensor<8xf16>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x8xf16>, tensor<8xf16>, tensor<8xf16>)
  // GENERIC: %dx, %dscale, %dbias = "train.layer_norm_grad"(%dy, %x, %scale, %mean, %inverse) <{axis = 1 : i64, epsilon = 1.000000e-05 : f32}>
  %dx, %dscale, %dbias = train.layer_norm_grad %dy, %x, %scale, %mean, %inverse {axis = 1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>, tensor<8xf16>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x8xf16>, tensor<8xf16>, tensor<8xf16>)
  // CHECK-NEXT: %0, %1 = train.layer_norm_grad %dy, %x, %scale, %mean, %inverse {axis = 1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>, tensor<8xf16>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x8xf16>, tensor<8xf16>)
  %0, %1 = train.layer_norm_grad %dy, %x, %scale, %mean, %inverse {axis = 1 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>, tensor<8xf16>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x8xf16>, tensor<8xf16>)
  // CHECK-NEXT: %2, %3 = train.rms_norm %x, %scale {axis = -1 : i64, epsilon = 1.000000e-06 : f32} : (tensor<2x8xf16>, tensor<8xf16>) -> (tensor<2x8xf16>, tensor<2x1xf32>)
  %2, %3 = train.rms_norm %x, %scale {axis = -1 : i64, epsilon = 1.000000e-06 : f32} : (tensor<2x8xf16>, tensor<8xf16>) -> (tensor<2x8xf16>, tensor<2x1xf32>)
  // CHECK-NEXT: %4, %5 = train.rms_norm_grad %dy, %x, %scale, %3 {axis = -1 : i64, epsilon = 1.000000e-06 : f32}
  %4, %5 = train.rms_norm_grad %dy, %x, %scale, %3 {axis = -1 : i64, epsilon = 1.000000e-06 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>, tensor<8xf16>, tensor<2x1xf32>) -> (tensor<2x8xf16>, tensor<8xf16>)
  // CHECK-NEXT: %6 = train.gelu_grad %dy, %x {approximate = "tanh"} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  %6 = train.gelu_grad %dy, %x {approximate = "tanh"} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  // CHECK-NEXT: %7 = train.swish_grad %dy, %x {alpha = 1.000000e+00 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  %7 = train.swish_grad %dy, %x {alpha = 1.000000e+00 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  func.return
}
