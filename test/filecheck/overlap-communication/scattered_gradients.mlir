// RUN: distir-opt %s -p overlap-communication | filecheck %s

// Whole gradients are free when a device has waited for what is scattered of them. It does so for
// those of the first call before the third begins, by a use that changes nothing.

device.cluster @two {
  device.kind @unit on [0 to 2] {memory = 100000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 64.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @two <d = 2> [0 to 2]
#B = #dist.layout<@mesh, [{d}, {}]>
#P = #dist.layout<@mesh, partial sum {d}>
#D = #dist.layout<@mesh, [{d}, {}]>

// CHECK:       func.func private @backward_and_reduce
// CHECK:         onnx.Gemm
// CHECK-NEXT:    collective.reduce_scatter {{.*}} {dist.asynchronous} :
// CHECK:         func.return
func.func private @backward(%dy: tensor<8x4xf32, #B>, %x: tensor<8x4xf32, #B>, %w: tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>) {
  %g = onnx.Gemm(%x, %dy) {transA = 1 : i64} : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>) -> tensor<4x4xf32, #P>
  %dx = onnx.MatMul(%dy, %w) : (tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> tensor<8x4xf32, #B>
  func.return %dx, %g : tensor<8x4xf32, #B>, tensor<4x4xf32, #P>
}

// CHECK:       func.func @main
// CHECK-NEXT:    %d3, %p3 = func.call @backward_and_reduce(
// CHECK-NEXT:    %d2, %p2 = func.call @backward_and_reduce(
// CHECK-NEXT:    %p3_1 = onnx.Identity(%p3)
// CHECK-NEXT:    %d1, %p1 = func.call @backward_and_reduce(
// CHECK-NEXT:    func.return %p3_1, %p2, %p1
func.func @main(%dy: tensor<8x4xf32, #B>, %x: tensor<8x4xf32, #B>, %w: tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<4x4xf32, #D>, tensor<4x4xf32, #D>, tensor<4x4xf32, #D>) {
  %d3, %p3 = func.call @backward(%dy, %x, %w) : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>)
  %s3 = collective.reduce_scatter %p3 over [d] : tensor<4x4xf32, #P> -> tensor<4x4xf32, #D>
  %d2, %p2 = func.call @backward(%d3, %x, %w) : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>)
  %s2 = collective.reduce_scatter %p2 over [d] : tensor<4x4xf32, #P> -> tensor<4x4xf32, #D>
  %d1, %p1 = func.call @backward(%d2, %x, %w) : (tensor<8x4xf32, #B>, tensor<8x4xf32, #B>, tensor<4x4xf32, #dist.layout<@mesh>>) -> (tensor<8x4xf32, #B>, tensor<4x4xf32, #P>)
  %s1 = collective.reduce_scatter %p1 over [d] : tensor<4x4xf32, #P> -> tensor<4x4xf32, #D>
  func.return %s3, %s2, %s1 : tensor<4x4xf32, #D>, tensor<4x4xf32, #D>, tensor<4x4xf32, #D>
}
