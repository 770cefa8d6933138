// RUN: not distir-opt %s -p "differentiate{loss=outside optimizer=none}" 2>&1 | filecheck %s

// CHECK: error: differentiate: no result of the program is a float that is computed from a parameter
func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x8xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<4x8xi64> {
  %y = onnx.Add(%x, %w) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %i = onnx.Cast(%y) {to = 7 : i64} : (tensor<4x8xf32>) -> tensor<4x8xi64>
  func.return %i : tensor<4x8xi64>
}
