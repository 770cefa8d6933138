// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu},project{spmd}" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu},project{spmd}" | distir-opt | filecheck %s
// RUN: not distir-opt %s -p "distribute{p=2 k=2 cluster=cpu},project{spmd}" 2>&1 | filecheck %s --check-prefix PIPELINE
// RUN: not distir-opt %s -p "distribute{d=2 cluster=cpu},project{spmd rank=1}" 2>&1 | filecheck %s --check-prefix BOTH

// One program for all ranks: the number of the rank is a value, and the group of the all-reduce
// over t, two neighbours, is computed from it.

// CHECK:      func.func @main(%x: tensor<4x16xf32>
// CHECK-NEXT:   [[R:%.*]] = collective.spmd.rank : tensor<i64>
// CHECK:        [[T:%.*]] = onnx.Mod(
// CHECK:        [[FIRST:%.*]] = onnx.Sub([[R]],
// CHECK:        [[ALONG:%.*]] = onnx.Constant() {value = dense<[0, 1]> : tensor<2xi64>}
// CHECK-NEXT:   [[GROUP:%.*]] = onnx.Add([[FIRST]], [[ALONG]])
// CHECK:        collective.spmd.all_reduce %y in [[GROUP]] over [t] {mesh = @mesh, reduction = "sum"} : tensor<4x16xf32>, tensor<2xi64> -> tensor<4x16xf32>
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<8x16xf32> {
  %h = onnx.MatMul(%x, %w) {scope = "a"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %r = onnx.Relu(%h) {scope = "a"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %y = onnx.MatMul(%r, %v) {scope = "b"} : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
// PIPELINE: error: project{spmd}: the program runs on several meshes (@stage0, @stage1), whose ranks run different code, as in a pipeline; use project{rank=...} for each rank
// BOTH:     error: project: with spmd there is one program for all ranks; leave out rank
