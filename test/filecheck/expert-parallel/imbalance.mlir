// RUN: distir-opt %s --split-input-file -p "expert-parallel" --verify-diagnostics | filecheck %s

// The program says how much more than the mean load the busiest device has; else 1.3 is assumed.
// Only products whose shards may be on different devices, and that drop no token, say it.

device.mesh @mesh on @box <e = 2> [0 to 2]

// CHECK: train.grouped_product %{{.*}} {taken = 1 : i64, imbalance = 2.500000e+00 : f64}

func.func @main(%x: tensor<8x1x6xf32> {dist.role = "input", dist.name = "x"}, %ids: tensor<8x1x1xi64> {dist.role = "input", dist.name = "ids"}, %w: tensor<4x6x6xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x1x6xf32> {
  %slots, %rows = train.expert_places %ids {experts = 4 : i64, capacity = 1 : i64, imbalance = 2.5 : f64} : (tensor<8x1x1xi64>) -> (tensor<8x1x1xi64>, tensor<1x8x1xi64>)
  %sent = train.dispatch %x, %slots, %rows : (tensor<8x1x6xf32>, tensor<8x1x1xi64>, tensor<1x8x1xi64>) -> tensor<1x8x1x6xf32>
  %h = train.grouped_product %sent, %rows, %w {taken = 1 : i64} : (tensor<1x8x1x6xf32>, tensor<1x8x1xi64>, tensor<4x6x6xf32>) -> tensor<1x8x1x6xf32>
  %y = train.combine %h, %slots, %rows : (tensor<1x8x1x6xf32>, tensor<8x1x1xi64>, tensor<1x8x1xi64>) -> tensor<8x1x6xf32>
  func.return %y : tensor<8x1x6xf32>
}

// -----

// CHECK: train.expert_places: the busiest device has at least the mean load, so an imbalance of 0.5 cannot be

func.func @main(%ids: tensor<8x1x1xi64> {dist.role = "input", dist.name = "ids"}) -> tensor<1x8x1xi64> {
  %slots, %rows = train.expert_places %ids {experts = 4 : i64, capacity = 1 : i64, imbalance = 0.5 : f64} : (tensor<8x1x1xi64>) -> (tensor<8x1x1xi64>, tensor<1x8x1xi64>)
  func.return %rows : tensor<1x8x1xi64>
}
