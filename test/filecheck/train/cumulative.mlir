// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" | filecheck %s --check-prefix=STEP

func.func @main(%x: tensor<4x8xf32> {dist.role = "parameter", dist.name = "x"}) -> tensor<f32> {
  %axis = onnx.Constant() {value = dense<1> : tensor<i64>} : () -> tensor<i64>
  %y = onnx.CumProd(%x, %axis) {exclusive = 1 : i64} : (tensor<4x8xf32>, tensor<i64>) -> tensor<4x8xf32>
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<4x8xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// STEP: train.cumprod_grad %{{.*}}, %x {axis = 1 : i64, exclusive} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>

func.func @grad(%dy: tensor<2x8xf16>, %x: tensor<2x8xf16>) -> tensor<2x8xf16> {
  // CHECK: %dx = train.cumprod_grad %dy, %x {axis = 0 : i64, reverse} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  %dx = train.cumprod_grad %dy, %x {axis = 0 : i64, reverse} : (tensor<2x8xf16>, tensor<2x8xf16>) -> tensor<2x8xf16>
  func.return %dx : tensor<2x8xf16>
}
