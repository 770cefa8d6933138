// RUN: distir-opt %s -p overlap-communication | filecheck %s

// Weights that ZeRO stores flat get their shape back in front of the layer that uses them. They are
// gathered while the layer before is computed all the same, both of them.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 8.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]
#D = #dist.layout<@mesh, [{d}, {}]>
#F = #dist.layout<@mesh, [{d}]>

func.func private @layer(%x: tensor<2x2xf32, #D>, %v: tensor<2x2xf32, #dist.layout<@mesh>>, %w: tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D> {
  %h = onnx.MatMul(%x, %v) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D>
  %y = onnx.MatMul(%h, %w) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D>
  func.return %y : tensor<2x2xf32, #D>
}

// CHECK:       func.func @main
// CHECK:         %v2_flat = collective.all_gather %v2 over [d] {dist.asynchronous} :
// CHECK-NEXT:    %w2_flat = collective.all_gather %w2 over [d] {dist.asynchronous} :
// CHECK-NEXT:    %a = func.call @layer(
// CHECK-NEXT:    %v2_whole = train.unflatten %v2_flat
// CHECK-NEXT:    %w2_whole = train.unflatten %w2_flat
// CHECK-NEXT:    %b = func.call @layer(%a, %v2_whole, %w2_whole)
func.func @main(%x: tensor<2x2xf32, #D>, %v1: tensor<4xf32, #F> {dist.role = "parameter"}, %w1: tensor<4xf32, #F> {dist.role = "parameter"}, %v2: tensor<4xf32, #F> {dist.role = "parameter"}, %w2: tensor<4xf32, #F> {dist.role = "parameter"}) -> tensor<2x2xf32, #D> {
  %v1_flat = collective.all_gather %v1 over [d] : tensor<4xf32, #F> -> tensor<4xf32, #dist.layout<@mesh>>
  %w1_flat = collective.all_gather %w1 over [d] : tensor<4xf32, #F> -> tensor<4xf32, #dist.layout<@mesh>>
  %v1_whole = train.unflatten %v1_flat : (tensor<4xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #dist.layout<@mesh>>
  %w1_whole = train.unflatten %w1_flat : (tensor<4xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #dist.layout<@mesh>>
  %a = func.call @layer(%x, %v1_whole, %w1_whole) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #dist.layout<@mesh>>, tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D>
  %v2_flat = collective.all_gather %v2 over [d] : tensor<4xf32, #F> -> tensor<4xf32, #dist.layout<@mesh>>
  %w2_flat = collective.all_gather %w2 over [d] : tensor<4xf32, #F> -> tensor<4xf32, #dist.layout<@mesh>>
  %v2_whole = train.unflatten %v2_flat : (tensor<4xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #dist.layout<@mesh>>
  %w2_whole = train.unflatten %w2_flat : (tensor<4xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #dist.layout<@mesh>>
  %b = func.call @layer(%a, %v2_whole, %w2_whole) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #dist.layout<@mesh>>, tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D>
  func.return %b : tensor<2x2xf32, #D>
}
