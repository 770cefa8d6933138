// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: kernel.def @k: implementation = 'os' names no function; write MODULE:FUNCTION, such as my_kernels:attention
kernel.def @k attributes {implementation = "os", rule = "[a] -> [a]"} {
^bb0(%x: tensor<4xf32>):
  kernel.result %x : tensor<4xf32>
}

// -----

// CHECK: kernel.def @k: gradient = 'backward' names no function
kernel.def @k attributes {implementation = "mine:k", rule = "[a] -> [a]", gradient = "backward"} {
^bb0(%x: tensor<4xf32>):
  kernel.result %x : tensor<4xf32>
}

// -----

// CHECK: kernel.def @k: a kernel gives one value, or is the gradient of one (`wrt`)
kernel.def @k attributes {implementation = "mine:k", rule = "[a] -> [a], [a]"} {
^bb0(%x: tensor<4xf32>):
  kernel.result %x, %x : tensor<4xf32>, tensor<4xf32>
}

// -----

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: kernel.call of @k, of which there is no kernel.def
  %0 = kernel.call @k(%x) {rule = "[a] -> [a]"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

kernel.def @k attributes {implementation = "mine:k", rule = "[a] -> [a]"} {
^bb0(%x: tensor<4xf32>):
  kernel.result %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: kernel.call of @k, which takes 1 values and gives 1, has 2 and 1
  %0 = kernel.call @k(%x, %x) {rule = "[a] -> [a]"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}

// -----

transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %1 = schedule.node "onnx.Relu"(%x)
    schedule.found %1
  }
  // CHECK: schedule.kernel: implementation = "os" names no function; write MODULE:FUNCTION
  schedule.kernel %0 {symbol = "k", implementation = "os"}
  transform.yield
}
