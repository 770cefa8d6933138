// RUN: not distir-opt %s -p verify-distribution 2>&1 | filecheck %s

// An op of one rank's program has no place in that of all ranks.

device.mesh @mesh on @pair <d = 2> [0 to 2]
#W = #dist.layout<@mesh>

// CHECK: error: collective.coordinate %c belongs to the program of one rank, but the program is distributed; `project` makes such ops
func.func @main(%a: tensor<4xf32, #W>) -> tensor<4xf32, #W> {
  %c = collective.coordinate over [d] {index = 1 : i64} : tensor<i64>
  %y = onnx.Neg(%a) : (tensor<4xf32, #W>) -> tensor<4xf32, #W>
  func.return %y : tensor<4xf32, #W>
}
