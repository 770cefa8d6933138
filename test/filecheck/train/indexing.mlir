// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @main(%dy: tensor<4x8xf32>, %i: tensor<4xi64>, %w: tensor<16x8xf32>) -> tensor<16x8xf32> {
  // CHECK: %a = train.gather_grad %dy, %i like %w {axis = 0 : i64} : (tensor<4x8xf32>, tensor<4xi64>, tensor<16x8xf32>) -> tensor<16x8xf32>
  %a = train.gather_grad %dy, %i like %w {axis = 0 : i64} : (tensor<4x8xf32>, tensor<4xi64>, tensor<16x8xf32>) -> tensor<16x8xf32>
  // CHECK: %b = train.gather_grad %dy, %i {axis = 0 : i64} : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<16x8xf32>
  %b = train.gather_grad %dy, %i {axis = 0 : i64} : (tensor<4x8xf32>, tensor<4xi64>) -> tensor<16x8xf32>
  %c = onnx.Add(%a, %b) : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  func.return %c : tensor<16x8xf32>
}
