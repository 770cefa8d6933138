// RUN: distir-opt %s -p "distribute{e=2 t=2 expert_axes=et}" | filecheck %s
// RUN: distir-opt %s -p "distribute{e=2 t=2 expert_axes=et},project{rank=1}" | filecheck %s --check-prefix=RANK
// RUN: distir-opt %s -p "distribute{e=4 expert_axes=e}" | filecheck %s --check-prefix=ALONE
// RUN: not distir-opt %s -p "distribute{e=2 expert_axes=et}" 2>&1 | filecheck %s --check-prefix=IDLE
// RUN: not distir-opt %s -p "distribute{e=2 t=2 expert_axes=te}" 2>&1 | filecheck %s --check-prefix=UNKNOWN

// Four samples of four tokens, two samples on the devices of an e: over t, a device has two
// tokens of each of them, which are rows 0, 1, 4, 5 of eight, or 2, 3, 6, 7.

// CHECK: collective.ragged_all_to_all {{.*}} over [e, t] {{.*}} #dist.layout<@mesh, [{}, {e, t:2}, {}, {}]>>{{.*}} -> tensor<4x16x1x6xf32, #dist.layout<@mesh, [{e, t}, {}, {}, {}]>>
// CHECK: train.grouped_product {{.*}}tensor<4x6x6xf32, #dist.layout<@mesh, [{e, t}, {}, {}]>>
// CHECK: collective.ragged_all_to_all {{.*}} over [e, t] {{.*}} -> tensor<4x16x1x6xf32, #dist.layout<@mesh, [{}, {e, t:2}, {}, {}]>>

// RANK: collective.rank.ragged_all_to_all {{.*}} group = array<i64: 0, 1, 2, 3>, dim = 1 : i64, run = 2 : i64, blocks = 2 : i64, split_dim = 0 : i64
// RANK: collective.rank.ragged_all_to_all {{.*}} dim = 0 : i64, split_dim = 1 : i64, split_run = 2 : i64, split_blocks = 2 : i64

// ALONE: collective.ragged_all_to_all {{.*}} over [e] {{.*}} -> tensor<4x16x1x6xf32, #dist.layout<@mesh, [{e}, {}, {}, {}]>>

// IDLE: error: distribute: expert_axes=et deals experts out over axis 't', but t is 1; choose a larger -t, or leave it out
// UNKNOWN: error: distribute: there is no set of axes of experts 'te'; choose one of e, ec, et, ect

func.func @main(%x: tensor<4x4x6xf32> {dist.role = "input", dist.name = "x"}, %ids: tensor<16x1x1xi64> {dist.role = "input", dist.name = "ids"}, %w: tensor<4x6x6xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<16x1x6xf32> {
  %shape = onnx.Constant() {value = dense<[-1, 1, 6]> : tensor<3xi64>} : () -> tensor<3xi64>
  %tokens = onnx.Reshape(%x, %shape) : (tensor<4x4x6xf32>, tensor<3xi64>) -> tensor<16x1x6xf32>
  %slots, %rows = train.expert_places %ids {experts = 4 : i64, capacity = 1 : i64} : (tensor<16x1x1xi64>) -> (tensor<16x1x1xi64>, tensor<1x16x1xi64>)
  %sent = train.dispatch %tokens, %slots, %rows : (tensor<16x1x6xf32>, tensor<16x1x1xi64>, tensor<1x16x1xi64>) -> tensor<1x16x1x6xf32>
  %h = train.grouped_product %sent, %rows, %w {taken = 1 : i64} : (tensor<1x16x1x6xf32>, tensor<1x16x1xi64>, tensor<4x6x6xf32>) -> tensor<1x16x1x6xf32>
  %y = train.combine %h, %slots, %rows : (tensor<1x16x1x6xf32>, tensor<16x1x1xi64>, tensor<1x16x1xi64>) -> tensor<16x1x6xf32>
  func.return %y : tensor<16x1x6xf32>
}
