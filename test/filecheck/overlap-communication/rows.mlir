// RUN: distir-opt %s -p overlap-communication,verify-distribution | filecheck %s
// RUN: distir-opt %s -p "overlap-communication{kinds=dp,pp}" | filecheck %s --check-prefix ONE
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix BEFORE
// RUN: distir-opt %s -p overlap-communication,simulate 2>&1 >/dev/null | filecheck %s --check-prefix AFTER
// RUN: distir-opt %s -p "overlap-communication,project{rank=1}" -t torch | filecheck %s --check-prefix TORCH

// Rows of which two devices have parts (sequence parallelism) are gathered, 8 s, for two products of
// 8 s each, and summed over all rows, for which they stay whole.
// BEFORE: step time 24 s
// BEFORE: exposed communication 0.333333

// In four pieces, all but the first are gathered while products are computed: 8 / 4 + 16 s.
// AFTER: step time 18 s
// AFTER: exposed communication 0.111111

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 8.0 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 4.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <t = 2> [0 to 2]
#W = #dist.layout<@mesh>
#S = #dist.layout<@mesh, [{t}, {}]>
#C = #dist.layout<@mesh, [{}, {t}]>

// Each device divides its rows, and a transposed parameter is there before the first product.
// CHECK:       %[[R:.*]] = onnx.Reshape(%x, {{.*}} -> tensor<2x4x1x2xf32, #{{.*}}<@mesh, [{t}, {}, {}, {}]>>
// CHECK-NEXT:  %[[A:.*]], %[[B:.*]], %[[C:.*]], %[[D:.*]] = onnx.Split(%[[R]]) {axis = 1 : i64, num_outputs = 4
// CHECK:       %[[GA:.*]] = collective.all_gather %[[A]] over [t] :
// CHECK-NEXT:  %[[GB:.*]] = collective.all_gather %[[B]] over [t] {dist.asynchronous}
// CHECK:       %[[P:.*]] = onnx.MatMul(%[[GA]], %w)
// CHECK:       %[[Q:.*]] = onnx.MatMul(%[[GA]], %v)
// CHECK:       onnx.MatMul(%[[GB]], %w)
// CHECK:       %[[J:.*]] = onnx.Concat(%[[P]], {{.*}} {axis = 1 : i64}
// CHECK:       onnx.Reshape(%[[J]], {{.*}} -> tensor<8x4xf32, #{{.*}}<@mesh, [{}, {t}]>>
// CHECK:       onnx.Concat(%[[Q]],
// CHECK:       onnx.Concat(%[[GA]], %[[GB]],
// CHECK:       onnx.ReduceSum

// ONE-NOT: onnx.Split

// TORCH:         collectives.all_gather(
// TORCH-COUNT-2: collectives.start_all_gather(
func.func @main(%x: tensor<8x2xf32, #S> {dist.role = "input", dist.name = "x"}, %w: tensor<2x4xf32, #C> {dist.role = "parameter", dist.name = "w"}, %u: tensor<4x2xf32, #S> {dist.role = "parameter", dist.name = "u"}) -> (tensor<8x4xf32, #C>, tensor<8x4xf32, #C>, tensor<1x2xf32, #W>) {
  %0 = collective.all_gather %x over [t] : tensor<8x2xf32, #S> -> tensor<8x2xf32, #W>
  %1 = onnx.MatMul(%0, %w) : (tensor<8x2xf32, #W>, tensor<2x4xf32, #C>) -> tensor<8x4xf32, #C>
  %v = onnx.Transpose(%u) {perm = [1, 0]} : (tensor<4x2xf32, #S>) -> tensor<2x4xf32, #C>
  %2 = onnx.MatMul(%0, %v) : (tensor<8x2xf32, #W>, tensor<2x4xf32, #C>) -> tensor<8x4xf32, #C>
  %axes = onnx.Constant() {value = dense<[0]> : tensor<1xi64>} : () -> tensor<1xi64, #W>
  %3 = onnx.ReduceSum(%0, %axes) : (tensor<8x2xf32, #W>, tensor<1xi64, #W>) -> tensor<1x2xf32, #W>
  func.return %1, %2, %3 : tensor<8x4xf32, #C>, tensor<8x4xf32, #C>, tensor<1x2xf32, #W>
}
