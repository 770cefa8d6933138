// RUN: not distir-opt %s -t torch 2>&1 | filecheck %s

// CHECK: error: func.call takes argument 0 of the program from the host's memory, where only train.fetch in @main may; fetch it there

func.func @main(%m: tensor<4x!dist.host<f32>> {dist.role = "state", dist.name = "w.exp_avg"}) -> tensor<4xf32> {
  %0 = func.call @half(%m) : (tensor<4x!dist.host<f32>>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
func.func private @half(%m: tensor<4x!dist.host<f32>>) -> tensor<4xf32> {
  %0 = train.fetch %m : (tensor<4x!dist.host<f32>>) -> tensor<4xf32>
  func.return %0 : tensor<4xf32>
}
