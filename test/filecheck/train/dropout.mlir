// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

func.func @main(%x: tensor<4x6xf32>, %step: tensor<i64>, %part: tensor<2x2xf16>, %i: tensor<i64>) -> (tensor<4x6xf32>, tensor<2x2xf16>) {
  // CHECK: %y = train.dropout %x, %step {ratio = 1.000000e-01 : f64, seed = 3 : i64, stream = 7 : i64} : (tensor<4x6xf32>, tensor<i64>) -> tensor<4x6xf32>
  %y = train.dropout %x, %step {ratio = 0.1 : f64, seed = 3 : i64, stream = 7 : i64} : (tensor<4x6xf32>, tensor<i64>) -> tensor<4x6xf32>
  // CHECK: %z = train.dropout %part, %step at(%i, %i) {ratio = 5.000000e-01 : f64, seed = 0 : i64, stream = 0 : i64, global_shape = array<i64: 4, 6>, splits = [array<i64: 0, 2, 2>, array<i64: 1, 3, 1>]} : (tensor<2x2xf16>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<2x2xf16>
  %z = train.dropout %part, %step at(%i, %i) {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64, global_shape = array<i64: 4, 6>, splits = [array<i64: 0, 2, 2>, array<i64: 1, 3, 1>]} : (tensor<2x2xf16>, tensor<i64>, tensor<i64>, tensor<i64>) -> tensor<2x2xf16>
  // CHECK: %y_1, %mask = train.dropout %x, %step {ratio = 1.000000e-01 : f64, seed = 3 : i64, stream = 7 : i64} : (tensor<4x6xf32>, tensor<i64>) -> (tensor<4x6xf32>, tensor<4x6xi1>)
  %y_1, %mask = train.dropout %x, %step {ratio = 0.1 : f64, seed = 3 : i64, stream = 7 : i64} : (tensor<4x6xf32>, tensor<i64>) -> (tensor<4x6xf32>, tensor<4x6xi1>)
  // CHECK: %dx = train.dropout_grad %x, %mask {ratio = 1.000000e-01 : f64} : (tensor<4x6xf32>, tensor<4x6xi1>) -> tensor<4x6xf32>
  %dx = train.dropout_grad %x, %mask {ratio = 0.1 : f64} : (tensor<4x6xf32>, tensor<4x6xi1>) -> tensor<4x6xf32>
  func.return %y, %z : tensor<4x6xf32>, tensor<2x2xf16>
}
