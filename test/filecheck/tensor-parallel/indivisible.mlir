// RUN: distir-opt %s -p "tensor-parallel" | filecheck %s

// A vocabulary of 51 over two devices: the head stays whole, and a note says so.

// CHECK: dist.notes = ["onnx.MatMul %y (in head) stays whole on axis 't' of size 2: 7 and 51 cannot be split evenly by 2"]
builtin.module {
  device.mesh @mesh on @box <t = 2> [0 to 2]

  // CHECK: %w: tensor<7x51xf32> {dist.role = "parameter"}
  func.func @main(%x: tensor<8x7xf32> {dist.role = "input"}, %w: tensor<7x51xf32> {dist.role = "parameter"}) -> tensor<8x51xf32> {
    %y = onnx.MatMul(%x, %w) {scope = "head"} : (tensor<8x7xf32>, tensor<7x51xf32>) -> tensor<8x51xf32>
    func.return %y : tensor<8x51xf32>
  }
}
