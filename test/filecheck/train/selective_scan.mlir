// RUN: distir-opt %s -p "differentiate{loss=none optimizer=none}" --split-input-file --verify-diagnostics | filecheck %s
// RUN: distir-opt %s --split-input-file --verify-diagnostics | filecheck %s --check-prefix=INVALID

// The gradient computes the states again: it takes what the scan took, and no result of it.
func.func @main(%x: tensor<2x4x5xf32> {dist.role = "parameter", dist.name = "x"}, %dt: tensor<2x4x5xf32>, %a: tensor<4x3xf32> {dist.role = "parameter", dist.name = "a"}, %b: tensor<2x3x5xf32>, %c: tensor<2x3x5xf32>) -> tensor<f32> {
  %y = train.selective_scan %x, %dt, %a, %b, %c : (tensor<2x4x5xf32>, tensor<2x4x5xf32>, tensor<4x3xf32>, tensor<2x3x5xf32>, tensor<2x3x5xf32>) -> tensor<2x4x5xf32>
  %s = onnx.ReduceSum(%y) {keepdims = 0 : i64} : (tensor<2x4x5xf32>) -> tensor<f32>
  func.return %s : tensor<f32>
}

// CHECK:      %[[DX:.*]], %{{.*}}, %[[DA:.*]], %{{.*}}, %{{.*}} = train.selective_scan_grad %{{.*}}, %x, %dt, %a, %b, %c : (tensor<2x4x5xf32>, tensor<2x4x5xf32>, tensor<2x4x5xf32>, tensor<4x3xf32>, tensor<2x3x5xf32>, tensor<2x3x5xf32>)
// CHECK-NEXT: func.return %s, %[[DX]], %[[DA]]

// -----

func.func @shape(%x: tensor<2x4x5xf32>, %a: tensor<4x3xf32>, %b: tensor<2x3x5xf32>, %c: tensor<2x5x3xf32>) {
  // INVALID: train.selective_scan: c has shape [2, 5, 3], expected [2, 3, 5]
  %y = train.selective_scan %x, %x, %a, %b, %c : (tensor<2x4x5xf32>, tensor<2x4x5xf32>, tensor<4x3xf32>, tensor<2x3x5xf32>, tensor<2x5x3xf32>) -> tensor<2x4x5xf32>
  func.return
}

// -----

func.func @rank(%x: tensor<4x5xf32>, %a: tensor<4x3xf32>, %b: tensor<3x5xf32>) {
  // INVALID: train.selective_scan: x must have 3 dimensions
  %y = train.selective_scan %x, %x, %a, %b, %b : (tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x3xf32>, tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<4x5xf32>
  func.return
}

// -----

func.func @element(%x: tensor<2x4x5xf32>, %a: tensor<4x3xf16>, %b: tensor<2x3x5xf16>) {
  // INVALID: train.selective_scan: b has elements of type f16, expected f32
  %y = train.selective_scan %x, %x, %a, %b, %b : (tensor<2x4x5xf32>, tensor<2x4x5xf32>, tensor<4x3xf16>, tensor<2x3x5xf16>, tensor<2x3x5xf16>) -> tensor<2x4x5xf32>
  func.return
}
