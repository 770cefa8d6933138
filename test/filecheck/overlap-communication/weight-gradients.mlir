// RUN: distir-opt %s -p overlap-communication,verify-distribution | filecheck %s
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix BEFORE
// RUN: distir-opt %s -p overlap-communication,simulate 2>&1 >/dev/null | filecheck %s --check-prefix AFTER

// The gradient of activations is scattered, 32 s, and needed at once. The product for the weight's
// gradient, 16 s, runs meanwhile instead of before; products that need the scattered gradient, or
// that are needed for it, stay where they are.
// BEFORE: step time 112 s
// AFTER: step time 96 s

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 8.0 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 4.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <t = 2> [0 to 2]
#C = #dist.layout<@mesh, [{}, {t}]>
#R = #dist.layout<@mesh, [{t}, {}]>
#P = #dist.layout<@mesh, partial sum {t}>
#W = #dist.layout<@mesh>

// CHECK:      %[[DX:.*]] = onnx.MatMul(%dy, %w)
// CHECK-NEXT: %[[S:.*]] = collective.reduce_scatter %[[DX]] over [t] {dist.asynchronous
// CHECK-NEXT: %[[DW:.*]] = onnx.Gemm(%x, %dy)
// CHECK-NEXT: %[[T:.*]] = onnx.Neg(%[[DW]])
// CHECK-NEXT: %[[Y:.*]] = onnx.MatMul(%[[S]], %v)
// CHECK-NEXT: func.return %[[Y]], %[[T]]
func.func @main(%x: tensor<8x4xf32, #W> {dist.role = "input"}, %dy: tensor<8x4xf32, #C> {dist.role = "input"}, %w: tensor<4x8xf32, #R> {dist.role = "parameter"}, %v: tensor<8x4xf32, #W> {dist.role = "parameter"}) -> (tensor<8x4xf32, #R>, tensor<4x4xf32, #C>) {
  %dx = onnx.MatMul(%dy, %w) : (tensor<8x4xf32, #C>, tensor<4x8xf32, #R>) -> tensor<8x8xf32, #P>
  %dw = onnx.Gemm(%x, %dy) {transA = 1 : i64} : (tensor<8x4xf32, #W>, tensor<8x4xf32, #C>) -> tensor<4x4xf32, #C>
  %t = onnx.Neg(%dw) : (tensor<4x4xf32, #C>) -> tensor<4x4xf32, #C>
  %s = collective.reduce_scatter %dx over [t] : tensor<8x8xf32, #P> -> tensor<8x8xf32, #R>
  %y = onnx.MatMul(%s, %v) : (tensor<8x8xf32, #R>, tensor<8x4xf32, #W>) -> tensor<8x4xf32, #R>
  func.return %y, %t : tensor<8x4xf32, #R>, tensor<4x4xf32, #C>
}
