// RUN: distir-opt %s -p "context-parallel" | filecheck %s
// RUN: distir-opt %s -p "context-parallel{order=cyclic}" | filecheck %s --check-prefix=CYCLIC
// RUN: distir-opt %s -p "context-parallel,propagate-sharding,partition,lower-reshard,verify-distribution" | filecheck %s --check-prefix=SPLIT
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},context-parallel,propagate-sharding,partition,lower-reshard,verify-distribution" | filecheck %s --check-prefix=STEP
// RUN: not distir-opt %s -p "context-parallel{axis=d}" 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s -p "context-parallel{order=zigzag}" 2>&1 | filecheck %s --check-prefix=ORDER

// The sequence of 16 is split over "c"; positions that have another second dimension stay
// whole. Causal attention is told where its queries are, and has keys and values in parts.

device.mesh @mesh on @box <c = 4> [0 to 4]

// CHECK:      %x: tensor<2x16x8xf32> {dist.role = "input", dist.name = "x", dist.layout = #dist.layout<@mesh, [{}, {c}, {}]>}
// CHECK-SAME: %other: tensor<2x5xf32> {dist.role = "input", dist.name = "other"}
// CHECK:      %[[P:.*]] = onnx.Range(
// CHECK-NEXT: %[[Q:.*]] = dist.constrain %q {{.*}}[{}, {c}, {}]> over [c]
// CHECK-NEXT: %[[K:.*]] = dist.constrain {{.*}} {{.*}}[{}, {c}, {}]> over [c]
// CHECK:      train.placed_attention %[[P]], %[[P]], %[[Q]], %[[K]], %{{.*}} {q_num_heads = 2 : i64, kv_num_heads = 1 : i64}

// A token each in turn: a share of 4 is cut into as many runs as it can be.
// CYCLIC:     dist.layout = #dist.layout<@mesh, [{}, {c:1}, {}]>
// CYCLIC:     dist.constrain {{.*}} {{.*}}[{}, {c:1}, {}]> over [c]

// Queries stay split; keys and values are gathered.
// SPLIT:      %[[Q:.*]] = onnx.MatMul(%x, %wq)
// SPLIT:      collective.slice {{.*}} over [c] : tensor<16xi64, #dist.layout<@mesh>>
// SPLIT:      %[[K:.*]] = collective.all_gather {{.*}} over [c]
// SPLIT:      %[[V:.*]] = collective.all_gather {{.*}} over [c]
// SPLIT:      train.placed_attention {{.*}}, %[[Q]], %[[K]], %[[V]] {{.*}} -> (tensor<2x16x8xf32, #dist.layout<@mesh, [{}, {c}, {}]>>, tensor<2x2x16xf32, #dist.layout<@mesh, [{}, {}, {c}]>>)
// SPLIT-NOT:  collective
// SPLIT:      func.return

// Their gradients are reduced and scattered, those of parameters summed over "c".
// STEP:       train.placed_attention_grad
// STEP-NEXT:  collective.reduce_scatter
// STEP-NEXT:  collective.reduce_scatter
// STEP:       collective.all_reduce {{.*}} over [c] : tensor<8x8xf32

// AXIS:  error: no mesh has an axis 'd' (meshes of this module: @mesh {'c': 4})
// ORDER: error: context-parallel: there is no order of tokens 'zigzag'; choose one of contiguous, cyclic

func.func @main(%x: tensor<2x16x8xf32> {dist.role = "input", dist.name = "x"}, %other: tensor<2x5xf32> {dist.role = "input", dist.name = "other"}, %wq: tensor<8x8xf32> {dist.role = "parameter", dist.name = "wq"}, %wk: tensor<8x4xf32> {dist.role = "parameter", dist.name = "wk"}, %wv: tensor<8x4xf32> {dist.role = "parameter", dist.name = "wv"}) -> tensor<2x16x8xf32> {
  %q = onnx.MatMul(%x, %wq) : (tensor<2x16x8xf32>, tensor<8x8xf32>) -> tensor<2x16x8xf32>
  %k = onnx.MatMul(%x, %wk) : (tensor<2x16x8xf32>, tensor<8x4xf32>) -> tensor<2x16x4xf32>
  %v = onnx.MatMul(%x, %wv) : (tensor<2x16x8xf32>, tensor<8x4xf32>) -> tensor<2x16x4xf32>
  %y = onnx.Attention(%q, %k, %v) {is_causal = 1 : i64, q_num_heads = 2 : i64, kv_num_heads = 1 : i64} : (tensor<2x16x8xf32>, tensor<2x16x4xf32>, tensor<2x16x4xf32>) -> tensor<2x16x8xf32>
  func.return %y : tensor<2x16x8xf32>
}
