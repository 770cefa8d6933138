// RUN: distir-opt %s --split-input-file --verify-diagnostics | distir-opt --split-input-file --verify-diagnostics | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s --check-prefix=STEP

func.func @main(%x: tensor<4x8xf32> {dist.role = "parameter", dist.name = "x"}) -> tensor<f32> {
  %y = onnx.Shrink(%x) {bias = 5.000000e-01 : f32, lambd = 5.000000e-01 : f32} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<4x8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// STEP: train.shrink_grad %{{.*}}, %x {lambd = 5.000000e-01 : f32} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>

// -----

func.func @main(%dy: tensor<2x8xf16>, %x: tensor<2x8xf16>) -> tensor<2x8xf16> {
  // CHECK: %dx = train.shrink_grad %dy, %x {lambd = 2.500000e-01 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  %dx = train.shrink_grad %dy, %x {lambd = 2.5e-01 : f32} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  func.return %dx : tensor<2x8xf16>
}
