// RUN: distir-opt %s --split-input-file --verify-diagnostics | filecheck %s

func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = train.opaque %x {module = "m", tensors = ["w", "b"], rule = "[b, d] -> [b, d]"} : tensor<4x8xf32> -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK: train.opaque names 2 parameters and buffers of 'm', but has 1 inputs

// -----

func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = train.opaque %x {module = "m", rule = "[b, d] -> [b, d]", seed = 1 : i64} : tensor<4x8xf32> -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK: train.opaque: seed and stream come together, for a module that draws random numbers

// -----

func.func @main(%x: tensor<4x8xf32>, %n: tensor<i64>) -> tensor<4x8xf32> {
  %y = train.opaque %x counter %n {module = "m", rule = "[b, d] -> [b, d]"} : tensor<4x8xf32> counter tensor<i64> -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

// CHECK: train.opaque: draws, seed, stream and a counter come together

// -----

func.func @main(%x: tensor<4x8xf32>, %dy: tensor<4x8xf32>) -> tensor<4xf32> {
  %dx = train.opaque_grad %dy through %x {module = "m", rule = "[b, d], [b, d] -> [b, d]", wrt = array<i64: 0>, given = array<i64: 0>} : tensor<4x8xf32> through tensor<4x8xf32> -> tensor<4xf32>
  func.return %dx : tensor<4xf32>
}

// CHECK: train.opaque_grad: the gradient of input 0 has shape [4], expected [4, 8]

// -----

func.func @main(%x: tensor<4x8xf32>, %dy: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %dx = train.opaque_grad %dy through %x {module = "m", rule = "[b, d], [b, d] -> [b, d]", wrt = array<i64: 1>, given = array<i64: 0>} : tensor<4x8xf32> through tensor<4x8xf32> -> tensor<4x8xf32>
  func.return %dx : tensor<4x8xf32>
}

// CHECK: train.opaque_grad: wrt lists [1], for 1 inputs and 1 results
