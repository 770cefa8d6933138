// RUN: distir-opt %s -p "differentiate{loss=none optimizer=adamw},tensor-parallel" --split-input-file | filecheck %s

// A training step: a table of 64 rows, of which 16 are looked up, is split with its states.

// CHECK:      %table: tensor<64x8xf32> {dist.role = "parameter", dist.name = "table", dist.layout = #dist.layout<@mesh, [{t}, {}]>}
// CHECK-SAME: %table_exp_avg: tensor<64x8xf32> {dist.role = "state", dist.name = "table.exp_avg", dist.of = "table", dist.layout = #dist.layout<@mesh, [{t}, {}]>}
builtin.module {
  device.mesh @mesh on @box <t = 2> [0 to 2]
  func.func @main(%ids: tensor<16xi64> {dist.role = "input"}, %table: tensor<64x8xf32> {dist.role = "parameter", dist.name = "table"}) -> tensor<f32> {
    %rows = onnx.Gather(%table, %ids) {axis = 0 : i64} : (tensor<64x8xf32>, tensor<16xi64>) -> tensor<16x8xf32>
    %squares = onnx.Mul(%rows, %rows) : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
    %y = onnx.ReduceMean(%squares) {keepdims = 0 : i64} : (tensor<16x8xf32>) -> tensor<f32>
    func.return %y : tensor<f32>
  }
}

// -----

// With 32 rows looked up, half of the table is no more.

// CHECK:     %table: tensor<64x8xf32> {dist.role = "parameter", dist.name = "table"}
// CHECK-NOT: dist.layout
builtin.module {
  device.mesh @mesh on @box <t = 2> [0 to 2]
  func.func @main(%ids: tensor<32xi64> {dist.role = "input"}, %table: tensor<64x8xf32> {dist.role = "parameter", dist.name = "table"}) -> tensor<f32> {
    %rows = onnx.Gather(%table, %ids) {axis = 0 : i64} : (tensor<64x8xf32>, tensor<32xi64>) -> tensor<32x8xf32>
    %squares = onnx.Mul(%rows, %rows) : (tensor<32x8xf32>, tensor<32x8xf32>) -> tensor<32x8xf32>
    %y = onnx.ReduceMean(%squares) {keepdims = 0 : i64} : (tensor<32x8xf32>) -> tensor<f32>
    func.return %y : tensor<f32>
  }
}
