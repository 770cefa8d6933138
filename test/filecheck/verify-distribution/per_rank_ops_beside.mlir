// RUN: not distir-opt %s -p verify-distribution 2>&1 | filecheck %s

// Nor is there a place for an op of one rank's program in a function beside it.

device.mesh @mesh on @pair <d = 2> [0 to 2]
#W = #dist.layout<@mesh>

func.func @main(%a: tensor<4xf32, #W>) -> tensor<4xf32, #W> {
  %y = onnx.Neg(%a) : (tensor<4xf32, #W>) -> tensor<4xf32, #W>
  func.return %y : tensor<4xf32, #W>
}
// CHECK: error: collective.recv %r belongs to the program of one rank, but the program is distributed; `project` makes such ops
func.func @eval() -> tensor<4xf32> {
  %r = collective.recv from 1 : tensor<4xf32>
  func.return %r : tensor<4xf32>
}
