// RUN: distir-opt %s -p "context-parallel,propagate-sharding,partition,lower-reshard,ring-attention,verify-distribution" | filecheck %s
// RUN: distir-opt %s -p "context-parallel{order=cyclic},propagate-sharding,partition,lower-reshard,ring-attention,verify-distribution" | filecheck %s --check-prefix=CYCLIC
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},context-parallel,propagate-sharding,partition,lower-reshard,ring-attention,verify-distribution" | filecheck %s --check-prefix=STEP
// RUN: distir-opt %s -p "context-parallel,propagate-sharding,partition,lower-reshard,ring-attention,project{rank=1}" | filecheck %s --check-prefix=RANK
// RUN: not distir-opt %s -p "context-parallel,ring-attention" 2>&1 | filecheck %s --check-prefix=EARLY

// Two devices: while one computes with its own keys and values, they go on to the other.

device.mesh @mesh on @box <c = 2> [0 to 2]

// CHECK-NOT:  all_gather
// CHECK:      %[[K:.*]] = collective.permute %k over [c] {dist.asynchronous} : tensor<2x2x8x4xf32, #dist.layout<@mesh, [{}, {}, {c}, {}]>>
// CHECK-NEXT: %[[V:.*]] = collective.permute %v over [c] {dist.asynchronous}
// CHECK-NEXT: %[[A:.*]], %[[SA:.*]] = train.placed_attention %[[P:.*]], %[[P]], %q, %k, %v {blocks = 2 : i64, step = 0 : i64}
// CHECK:      %[[P1:.*]] = onnx.Mod(
// CHECK-NEXT: %[[B:.*]], %[[SB:.*]] = train.placed_attention %[[P]], %[[P1]], %q, %[[K]], %[[V]] {blocks = 2 : i64, step = 1 : i64}
// CHECK-NEXT: %[[Y:.*]], %{{.*}} = train.merge_attention %[[A]], %[[SA]], %[[B]], %[[SB]]
// CHECK-NEXT: func.return %[[Y]]

// CYCLIC:     train.placed_attention {{.*}} {blocks = 2 : i64, run = 1 : i64, step = 0 : i64}
// CYCLIC:     train.placed_attention {{.*}} {blocks = 2 : i64, run = 1 : i64, step = 1 : i64}

// The gradients of keys and values go on with them, and come home with the last step.
// STEP:       train.placed_attention_grad
// STEP-NEXT:  collective.permute
// STEP-NEXT:  collective.permute
// STEP:       train.placed_attention_grad
// STEP-NEXT:  onnx.Add
// STEP-NEXT:  %[[DK:.*]] = onnx.Add
// STEP-NEXT:  %[[DV:.*]] = onnx.Add
// STEP-NEXT:  collective.permute %[[DK]] over [c] {dist.asynchronous}
// STEP-NEXT:  collective.permute %[[DV]] over [c] {dist.asynchronous}
// STEP-NOT:   reduce_scatter

// RANK:       collective.rank.permute {{.*}} {dist.asynchronous, mesh = @mesh, group = array<i64: 0, 1>}
// RANK:       train.placed_attention {{.*}} : (tensor<4xi64>, tensor<4xi64>, tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>)
// RANK:       collective.wait

// EARLY: error: ring-attention: no attention has keys and values that are gathered over axis 'c' for it alone

func.func @main(%x: tensor<2x8xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<2x2x8x4xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<2x2x8x4xf32> {
  %s = onnx.Constant() {value = dense<[2, 1, 8, 1]> : tensor<4xi64>} : () -> tensor<4xi64>
  %h = onnx.Reshape(%x, %s) : (tensor<2x8xf32>, tensor<4xi64>) -> tensor<2x1x8x1xf32>
  %q = onnx.Mul(%h, %w) : (tensor<2x1x8x1xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
  %k = onnx.Sub(%h, %w) : (tensor<2x1x8x1xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
  %v = onnx.Add(%h, %w) : (tensor<2x1x8x1xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
  %y = onnx.Attention(%q, %k, %v) {is_causal = 1 : i64} : (tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>) -> tensor<2x2x8x4xf32>
  func.return %y : tensor<2x2x8x4xf32>
}
