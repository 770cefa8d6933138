// RUN: distir-opt %s -p overlap-communication | filecheck %s
// RUN: distir-opt %s -p overlap-communication{ahead=2} | filecheck %s --check-prefix TWO
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix BEFORE
// RUN: distir-opt %s -p overlap-communication,simulate 2>&1 >/dev/null | filecheck %s --check-prefix AFTER
// RUN: distir-opt %s -p overlap-communication{ahead=2},simulate 2>&1 >/dev/null | filecheck %s --check-prefix TIGHT

// Three layers whose weights are stored split over "d" (ZeRO stage 3): each function call
// gathers its weight, 1 s for 8 bytes that a device lacks, and computes 2 s.
// BEFORE: step time 9 s
// BEFORE: 0  64

// The gathering moves out of the function and starts one use early, so that the weight of
// the next layer arrives while a layer computes. Only the first gathering is waited for. The
// price is the memory of one more gathered weight.
// AFTER: step time 7 s
// AFTER: 0  80

// Two uses ahead there would be one more, for which there is no memory (84 bytes). The pass
// then leaves gatherings where they are; and as that gains nothing here, the program, too.
// TIGHT: step time 9 s

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 84 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 8.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]
#D = #dist.layout<@mesh, [{d}, {}]>

// CHECK:       func.func private @layer(%x: tensor<2x2xf32, #dist.layout<@mesh, [{d}, {}]>>, %w: tensor<2x2xf32, #dist.layout<@mesh>>)
// CHECK-NEXT:    onnx.MatMul(%x, %w)
func.func private @layer(%x: tensor<2x2xf32, #D>, %w: tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D> {
  %g = collective.all_gather %w over [d] : tensor<2x2xf32, #D> -> tensor<2x2xf32, #dist.layout<@mesh>>
  %h = onnx.MatMul(%x, %g) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #dist.layout<@mesh>>) -> tensor<2x2xf32, #D>
  %y = onnx.Relu(%h) : (tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D>
  func.return %y : tensor<2x2xf32, #D>
}

// CHECK:       func.func @main
// CHECK-NEXT:    %[[W1:.*]] = collective.all_gather %w1 over [d] :
// CHECK-NEXT:    %[[W2:.*]] = collective.all_gather %w2 over [d] {dist.asynchronous} :
// CHECK-NEXT:    %a = func.call @layer(%x, %[[W1]])
// CHECK-NEXT:    %[[W3:.*]] = collective.all_gather %w3 over [d] {dist.asynchronous} :
// CHECK-NEXT:    %b = func.call @layer(%a, %[[W2]])
// CHECK-NEXT:    %c = func.call @layer(%b, %[[W3]])
func.func @main(%x: tensor<2x2xf32, #D>, %w1: tensor<2x2xf32, #D> {dist.role = "parameter"}, %w2: tensor<2x2xf32, #D> {dist.role = "parameter"}, %w3: tensor<2x2xf32, #D> {dist.role = "parameter"}) -> tensor<2x2xf32, #D> {
  %a = func.call @layer(%x, %w1) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D>
  %b = func.call @layer(%a, %w2) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D>
  %c = func.call @layer(%b, %w3) : (tensor<2x2xf32, #D>, tensor<2x2xf32, #D>) -> tensor<2x2xf32, #D>
  func.return %c : tensor<2x2xf32, #D>
}

// TWO:     func.func private @layer(
// TWO-NEXT:  collective.all_gather
