// RUN: not distir-opt %s -t torch 2>&1 | filecheck %s

// The package has one place for a state: a result there is what the step makes of it.
// CHECK: error: result 0 of the program is in the host's memory, but is not what train.offload makes of the new value of an argument there that nothing takes behind it; return a value of the device

func.func @main(%m: tensor<4x!dist.host<f32>> {dist.role = "state", dist.name = "w.exp_avg"}) -> (tensor<4x!dist.host<f32>>) {
  %0 = train.fetch %m : (tensor<4x!dist.host<f32>>) -> tensor<4xf32>
  %1 = onnx.Relu(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = train.offload %1 : (tensor<4xf32>) -> tensor<4x!dist.host<f32>>
  func.return %2 : tensor<4x!dist.host<f32>>
}
