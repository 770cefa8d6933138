// RUN: distir-opt %s -p "split-caches" | filecheck %s
// RUN: distir-opt %s -p "split-caches,propagate-sharding,partition,lower-reshard,verify-distribution" | filecheck %s --check-prefix=SPLIT
// RUN: not distir-opt %s -p "split-caches{axes=d}" 2>&1 | filecheck %s --check-prefix=AXIS

// Each device writes the tokens of its slots, and attends to its part of the keys. A cache
// that another layout was asked for keeps it, and a state has no positions.

device.mesh @mesh on @box <c = 4> [0 to 4]

// CHECK:      %key: tensor<2x1x8x8xf32> {dist.role = "cache", dist.name = "key", dist.layout = #dist.layout<@mesh, [{}, {}, {c}, {}]>}
// CHECK-SAME: %other: tensor<2x1x8x8xf32> {dist.role = "cache", dist.name = "other", dist.fixed = ["c"]}
// CHECK-SAME: %state: tensor<2x8xf32> {dist.role = "cache", dist.name = "state"}
// CHECK:      [[SLOTS:%.*]] = onnx.Range(
// CHECK-NEXT: [[NEW:%.*]] = train.write_slots %key, %x, %places, [[SLOTS]] {total = 8 : i64}
// CHECK-NEXT: onnx.TensorScatter(%other, %x, %places)
// CHECK-NEXT: [[Y:%.*]], [[SUMS:%.*]] = train.split_attention %q, [[NEW]], [[NEW]], %mask {splits = 4 : i64, scale = 2.500000e-01 : f32} {{.*}} -> (tensor<4x2x2x1x8xf32>, tensor<4x2x2x1xf32>)
// CHECK-NEXT: [[WEIGHTS:%.*]] = onnx.Softmax([[SUMS]]) {axis = 0 : i64}
// CHECK:      onnx.Unsqueeze([[WEIGHTS]],
// CHECK:      onnx.Mul([[Y]],
// CHECK:      onnx.ReduceSum({{.*}} {keepdims = 0 : i64} {{.*}} -> tensor<2x2x1x8xf32>

// Only logarithms and results are communicated; attention has one part on each device.
// SPLIT:      train.write_slots %key, %x, %places, {{.*}} : (tensor<2x1x8x8xf32, #dist.layout<@mesh, [{}, {}, {c}, {}]>>
// SPLIT:      train.split_attention %q, {{.*}} -> (tensor<4x2x2x1x8xf32, #dist.layout<@mesh, [{c}, {}, {}, {}, {}]>>, tensor<4x2x2x1xf32, #dist.layout<@mesh, [{c}, {}, {}, {}]>>)
// SPLIT-NEXT: collective.all_gather {{.*}} over [c] : tensor<4x2x2x1xf32
// SPLIT:      collective.all_reduce {{.*}} over [c] : tensor<2x2x1x8xf32
// SPLIT:      func.return

// AXIS: error: no mesh has an axis 'd' (meshes of this module: @mesh {'c': 4})

func.func @main(%q: tensor<2x2x1x8xf32> {dist.role = "input", dist.name = "q"}, %x: tensor<2x1x1x8xf32> {dist.role = "input", dist.name = "x"}, %places: tensor<2xi64> {dist.role = "input", dist.name = "places"}, %mask: tensor<2x1x1x8xf32> {dist.role = "input", dist.name = "mask"}, %key: tensor<2x1x8x8xf32> {dist.role = "cache", dist.name = "key"}, %other: tensor<2x1x8x8xf32> {dist.role = "cache", dist.name = "other", dist.fixed = ["c"]}, %state: tensor<2x8xf32> {dist.role = "cache", dist.name = "state"}) -> (tensor<2x2x1x8xf32>, tensor<2x1x8x8xf32> {dist.name = "key", dist.updates = "key"}, tensor<2x1x8x8xf32> {dist.name = "other", dist.updates = "other"}, tensor<2x8xf32> {dist.name = "state", dist.updates = "state"}) {
  %new = onnx.TensorScatter(%key, %x, %places) {axis = -2 : i64, mode = "circular"} : (tensor<2x1x8x8xf32>, tensor<2x1x1x8xf32>, tensor<2xi64>) -> tensor<2x1x8x8xf32>
  %kept = onnx.TensorScatter(%other, %x, %places) {axis = -2 : i64, mode = "circular"} : (tensor<2x1x8x8xf32>, tensor<2x1x1x8xf32>, tensor<2xi64>) -> tensor<2x1x8x8xf32>
  %y = onnx.Attention(%q, %new, %new, %mask) {scale = 2.500000e-01 : f32} : (tensor<2x2x1x8xf32>, tensor<2x1x8x8xf32>, tensor<2x1x8x8xf32>, tensor<2x1x1x8xf32>) -> tensor<2x2x1x8xf32>
  %next = onnx.Neg(%state) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %y, %new, %kept, %next : tensor<2x2x1x8xf32>, tensor<2x1x8x8xf32>, tensor<2x1x8x8xf32>, tensor<2x8xf32>
}
