// RUN: distir-opt %s -p bucket-collectives,verify-distribution | filecheck %s
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix BEFORE
// RUN: distir-opt %s -p bucket-collectives,simulate 2>&1 >/dev/null | filecheck %s --check-prefix AFTER
// RUN: distir-opt %s -p "bucket-collectives{megabytes=0.00002}" | filecheck %s --check-prefix SMALL
// RUN: distir-opt %s -p "bucket-collectives,project{rank=0}" -t torch | filecheck %s --check-prefix TORCH

// Gradients of three weights, each reduced over "d" where it is used. A message takes 4 s
// before its first byte arrives: an all-reduce among two devices sends two of them, so that
// three all-reduces of 16 bytes take 3 x 2 x (4 s + 8 B / 8 B/s).
// BEFORE: step time 30 s

// Those of the first two weights travel in one message of 32 bytes: the second one's
// operand is there when the first one starts. %g3 is computed from what the first brings,
// so it needs another one.
// AFTER: step time 22 s

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 8.0 : f64, latency = 4.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]
#W = #dist.layout<@mesh>
#P = #dist.layout<@mesh, [], partial sum {d}>

// CHECK:       func.func @main
// CHECK-NEXT:    %r1 = collective.all_reduce %g1 over [d] {dist.bucket = 0 : i64} : tensor<2x2xf32
// CHECK-NEXT:    %r2 = collective.all_reduce %g2 over [d] {dist.bucket = 0 : i64} : tensor<4xf32
// CHECK-NEXT:    %n1 = onnx.Neg(%r1)
// CHECK-NEXT:    %g3 = onnx.MatMul(%g1, %n1)
// CHECK-NEXT:    %n2 = onnx.Neg(%r2)
// CHECK-NEXT:    %r3 = collective.all_reduce %g3 over [d] : tensor<2x2xf32
// CHECK-NEXT:    func.return %n1, %n2, %r3

// Messages of 20 bytes hold one of these tensors each.
// SMALL-NOT: dist.bucket

// TORCH: r1, r2 = buckets.all_reduce((g1, g2), self.mesh.group('d'), reduction='sum')
func.func @main(%g1: tensor<2x2xf32, #P>, %g2: tensor<4xf32, #P>) -> (tensor<2x2xf32, #W>, tensor<4xf32, #W>, tensor<2x2xf32, #W>) {
  %r1 = collective.all_reduce %g1 over [d] : tensor<2x2xf32, #P> -> tensor<2x2xf32, #W>
  %n1 = onnx.Neg(%r1) : (tensor<2x2xf32, #W>) -> tensor<2x2xf32, #W>
  %g3 = onnx.MatMul(%g1, %n1) : (tensor<2x2xf32, #P>, tensor<2x2xf32, #W>) -> tensor<2x2xf32, #P>
  %r2 = collective.all_reduce %g2 over [d] : tensor<4xf32, #P> -> tensor<4xf32, #W>
  %n2 = onnx.Neg(%r2) : (tensor<4xf32, #W>) -> tensor<4xf32, #W>
  %r3 = collective.all_reduce %g3 over [d] : tensor<2x2xf32, #P> -> tensor<2x2xf32, #W>
  func.return %n1, %n2, %r3 : tensor<2x2xf32, #W>, tensor<4xf32, #W>, tensor<2x2xf32, #W>
}
