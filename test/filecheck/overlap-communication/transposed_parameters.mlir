// RUN: distir-opt %s -p overlap-communication | filecheck %s

// A backward multiplies by transposed weights. They are transposed and gathered in front of the
// calls, while the layer in front is computed.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 16.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]
#D = #dist.layout<@mesh, [{d}, {}]>
#C = #dist.layout<@mesh, [{}, {d}]>

// CHECK:       func.func private @layer
// CHECK-NEXT:    onnx.MatMul
// CHECK-NOT:     collective.all_gather
func.func private @layer(%x: tensor<2x2xf32, #D>, %w: tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D> {
  %t = onnx.Transpose(%w) {perm = [1 : i64, 0 : i64]} : (tensor<2x2xf32, #D>) -> tensor<2x2xf32, #C>
  %g = collective.all_gather %t over [d] : tensor<2x2xf32, #C> -> tensor<2x2xf32, #dist.layout<@mesh>>
  %y = onnx.MatMul(%x, %g) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D>
  func.return %y : tensor<2x2xf32, #D>
}

// CHECK:       func.func @main
// CHECK-NEXT:    %w1_1 = onnx.Transpose(%w1)
// CHECK-NEXT:    %w1_2 = collective.all_gather %w1_1 over [d] {dist.asynchronous} :
// CHECK-NEXT:    %w2_1 = onnx.Transpose(%w2)
// CHECK-NEXT:    %w2_2 = collective.all_gather %w2_1 over [d] {dist.asynchronous} :
// CHECK-NEXT:    %a = func.call @layer(%x, %w1_2)
// CHECK-NEXT:    %b = func.call @layer(%a, %w2_2)
func.func @main(%x: tensor<2x2xf32, #D>, %w1: tensor<2x2xf32, #D> {dist.role = "parameter"}, %w2: tensor<2x2xf32, #D> {dist.role = "parameter"}) -> tensor<2x2xf32, #D> {
  %a = func.call @layer(%x, %w1) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D>
  %b = func.call @layer(%a, %w2) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D>
  func.return %b : tensor<2x2xf32, #D>
}
