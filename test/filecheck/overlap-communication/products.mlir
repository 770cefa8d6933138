// RUN: distir-opt %s -p overlap-communication | filecheck %s
// RUN: distir-opt %s -p "overlap-communication{kinds=dp,pp}" | filecheck %s --check-prefix ONE
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix BEFORE
// RUN: distir-opt %s -p overlap-communication,simulate 2>&1 >/dev/null | filecheck %s --check-prefix AFTER
// RUN: distir-opt %s -p "overlap-communication,project{rank=0}" -t torch | filecheck %s --check-prefix TORCH

// A product whose terms two devices add up: 4 s of computation, then 4 s for the sum, and 8 s
// for another product of it.
// BEFORE: step time 16 s
// BEFORE: exposed communication 0.25

// In four pieces of its rows, each is added up while the next one is computed.
// AFTER: step time 13 s
// AFTER: exposed communication 0.0769231

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 4.0 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 8.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <t = 2> [0 to 2]
#W = #dist.layout<@mesh>
#X = #dist.layout<@mesh, [{}, {t}]>
#R = #dist.layout<@mesh, [{t}, {}]>
#P = #dist.layout<@mesh, [], partial sum {t}>

// CHECK:       %[[S:.*]], %[[S1:.*]], %[[S2:.*]], %[[S3:.*]] = onnx.Split(%x) {{.*}}num_outputs = 4
// CHECK-NEXT:  %[[A:.*]] = onnx.MatMul(%[[S]], %w)
// CHECK-NEXT:  %[[B:.*]] = collective.all_reduce %[[A]] over [t] {dist.asynchronous}
// CHECK-NEXT:  onnx.MatMul(%[[S1]], %w)
// CHECK:       %[[D:.*]] = onnx.MatMul(%[[S3]], %w)
// CHECK-NEXT:  collective.all_reduce %[[D]] over [t] :
// CHECK-NEXT:  onnx.Concat(%[[B]],

// ONE-NOT: onnx.Split

// TORCH-COUNT-3: collectives.start_all_reduce
// TORCH:         torch.cat
func.func @main(%x: tensor<4x2xf32, #X> {dist.role = "input", dist.name = "x"}, %w: tensor<2x2xf32, #R> {dist.role = "parameter", dist.name = "w"}, %u: tensor<2x2xf32, #W> {dist.role = "parameter", dist.name = "u"}) -> tensor<4x2xf32, #W> {
  %p = onnx.MatMul(%x, %w) : (tensor<4x2xf32, #X>, tensor<2x2xf32, #R>) -> tensor<4x2xf32, #P>
  %0 = collective.all_reduce %p over [t] : tensor<4x2xf32, #P> -> tensor<4x2xf32, #W>
  %1 = onnx.MatMul(%0, %u) : (tensor<4x2xf32, #W>, tensor<2x2xf32, #W>) -> tensor<4x2xf32, #W>
  func.return %1 : tensor<4x2xf32, #W>
}
