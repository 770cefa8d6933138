// RUN: distir-opt %s --split-input-file --verify-diagnostics | distir-opt --split-input-file --verify-diagnostics | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s --check-prefix=STEP

func.func @main(%x: tensor<4x3x3xf32> {dist.role = "parameter", dist.name = "x"}) -> tensor<f32> {
  // CHECK: %sign, %log = train.slogdet %x : (tensor<4x3x3xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %sign, %log = train.slogdet %x : (tensor<4x3x3xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %s = onnx.ReduceSum(%log) {keepdims = 0 : i64} : (tensor<4xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// STEP: train.slogdet_grad %{{.*}}, %x : (tensor<4xf32>, tensor<4x3x3xf32>) -> tensor<4x3x3xf32>
