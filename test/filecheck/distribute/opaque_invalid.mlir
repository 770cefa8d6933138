// RUN: not distir-opt %s -p "distribute{d=3}" 2>&1 | filecheck %s --check-prefix=BATCH
// RUN: not distir-opt %s -p "distribute{e=3}" 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s -p "distribute{d=2}" 2>&1 | filecheck %s --check-prefix=DRAWS

// BATCH: the batch of 8 (dimension 0 of input 'x') cannot be split evenly over axis 'd' of size 3
// AXIS: the opaque module 'm' splits a dimension of 8 elements over axis 'e', whose 3 devices do not divide it
// DRAWS: draws random numbers, and every device would draw others

func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"}) -> tensor<8x4xf32> {
  %y = train.opaque %x {module = "m", draws, rule = "[b@e, 4] -> [b@e, 4]"} : tensor<8x4xf32> -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
