// RUN: distir-opt %s -p overlap-communication | filecheck %s

// The sum over groups of devices (axis r), which needs what is scattered inside of them, starts when
// the next layer has been computed, so that no device waits for the scattering.

device.cluster @four {
  device.kind @unit on [0 to 4] {memory = 100000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 4 {bandwidth = 64.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @four <r = 2, d = 2> [0 to 4]
#B = #dist.layout<@mesh, [{r, d}, {}]>
#P = #dist.layout<@mesh, partial sum {d, r}>
#G = #dist.layout<@mesh, [{d}, {}], partial sum {r}>
#D = #dist.layout<@mesh, [{d}, {}]>

// CHECK:       func.func private @backward_and_reduce
// CHECK:         onnx.Gemm
// CHECK-NEXT:    collective.reduce_scatter {{.*}} {dist.asynchronous} :
// CHECK-NOT:     collective.all_reduce
// CHECK:         func.return
func.func private @backward(%dy: tensor<8x4xf32, #B>, %x: tensor<8x4xf32, #B>, %w: tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>) {
  %g = onnx.Gemm(%x, %dy) {transA = 1 : i64} : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>) -> tensor<4x4xf32, #P>
  %dx = onnx.MatMul(%dy, %w) : (tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> tensor<8x4xf32, #B>
  func.return %dx, %g : tensor<8x4xf32, #B>, tensor<4x4xf32, #P>
}

// CHECK:       func.func @main
// CHECK-NEXT:    %d3, %p3 = func.call @backward_and_reduce(
// CHECK-NEXT:    %d2, %p2 = func.call @backward_and_reduce(
// CHECK-NEXT:    %a3 = collective.all_reduce %p3 over [r] {dist.asynchronous} :
// CHECK-NEXT:    %d1, %p1 = func.call @backward_and_reduce(
// CHECK-NEXT:    %a2 = collective.all_reduce %p2 over [r] {dist.asynchronous} :
func.func @main(%dy: tensor<8x4xf32, #B>, %x: tensor<8x4xf32, #B>, %w: tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<4x4xf32, #D>, tensor<4x4xf32, #D>, tensor<4x4xf32, #D>) {
  %d3, %p3 = func.call @backward(%dy, %x, %w) : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>)
  %s3 = collective.reduce_scatter %p3 over [d] : tensor<4x4xf32, #P> -> tensor<4x4xf32, #G>
  %a3 = collective.all_reduce %s3 over [r] : tensor<4x4xf32, #G> -> tensor<4x4xf32, #D>
  %d2, %p2 = func.call @backward(%d3, %x, %w) : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>)
  %s2 = collective.reduce_scatter %p2 over [d] : tensor<4x4xf32, #P> -> tensor<4x4xf32, #G>
  %a2 = collective.all_reduce %s2 over [r] : tensor<4x4xf32, #G> -> tensor<4x4xf32, #D>
  %d1, %p1 = func.call @backward(%d2, %x, %w) : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>)
  %s1 = collective.reduce_scatter %p1 over [d] : tensor<4x4xf32, #P> -> tensor<4x4xf32, #G>
  %a1 = collective.all_reduce %s1 over [r] : tensor<4x4xf32, #G> -> tensor<4x4xf32, #D>
  func.return %a3, %a2, %a1 : tensor<4x4xf32, #D>, tensor<4x4xf32, #D>, tensor<4x4xf32, #D>
}
