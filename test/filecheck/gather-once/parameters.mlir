// RUN: distir-opt %s -p gather-once | filecheck %s
// RUN: distir-opt %s -p "gather-once{axis=e}" | filecheck %s --check-prefix OTHER

// Two stages, each on two devices, and two micro-batches. The weight of a stage is stored
// split over "d", and each call of a stage gathers it.

device.cluster @box {
  device.kind @unit on [0 to 4] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 4 {bandwidth = 2.0 : f64, latency = 0.0 : f64}
}
device.mesh @one on @box <d = 2> [0 to 2]
device.mesh @two on @box <d = 2> [2 to 4]
#X1 = #dist.layout<@one, [{d}, {}]>
#X2 = #dist.layout<@two, [{d}, {}]>
#P1 = #dist.layout<@one, [{d}, {}]>
#P2 = #dist.layout<@two, [{d}, {}]>
#W1 = #dist.layout<@one>
#W2 = #dist.layout<@two>

// The first micro-batch gathers the weight of the first stage and returns it whole.
// CHECK:       func.func private @first_of_gathered(%x: {{.*}}, %w: tensor<2x2xf32, #dist.layout<@one>>)
// CHECK-NEXT:    %y = onnx.MatMul(%x, %w)
// CHECK-NEXT:    func.return %y
// CHECK:       func.func private @first_and_gather(
// CHECK-NEXT:    %[[W:.*]] = collective.all_gather %w over [d]
// CHECK-NEXT:    %y = onnx.MatMul(%x, %[[W]])
// CHECK-NEXT:    func.return %y, %[[W]]
func.func private @first(%x: tensor<4x2xf32, #X1>, %w: tensor<2x2xf32, #P1>) -> tensor<4x2xf32, #X1> {
  %whole = collective.all_gather %w over [d] : tensor<2x2xf32, #P1> -> tensor<2x2xf32, #W1>
  %y = onnx.MatMul(%x, %whole) : (tensor<4x2xf32, #X1>, tensor<2x2xf32, #W1>) -> tensor<4x2xf32, #X1>
  func.return %y : tensor<4x2xf32, #X1>
}

// CHECK:       func.func private @second_of_gathered(
// CHECK-NOT:     collective.all_gather
// CHECK:         func.return
func.func private @second(%x: tensor<4x2xf32, #X2>, %w: tensor<2x2xf32, #P2>) -> tensor<4x2xf32, #X2> {
  %whole = collective.all_gather %w over [d] : tensor<2x2xf32, #P2> -> tensor<2x2xf32, #W2>
  %y = onnx.MatMul(%x, %whole) : (tensor<4x2xf32, #X2>, tensor<2x2xf32, #W2>) -> tensor<4x2xf32, #X2>
  func.return %y : tensor<4x2xf32, #X2>
}

// The second stage waits for the first one. Its weight is gathered in front of its first
// call, so that it can arrive meanwhile (overlap-communication).
// CHECK:       func.func @main
// CHECK-NEXT:    %a, %[[A:.*]] = func.call @first_and_gather(%x1, %w1)
// CHECK-NEXT:    %b = dist.send %a
// CHECK-NEXT:    %[[B:.*]] = collective.all_gather %w2 over [d]
// CHECK-NEXT:    %c = func.call @second_of_gathered(%b, %[[B]])
// CHECK-NEXT:    %d = func.call @first_of_gathered(%x2, %[[A]])
// CHECK-NEXT:    %e = dist.send %d
// CHECK-NEXT:    %f = func.call @second_of_gathered(%e, %[[B]])
// CHECK-NEXT:    func.return %c, %f

// Nothing is stored split over another axis.
// OTHER-NOT:   _and_gather
// OTHER:       func.call @first(%x1, %w1)
func.func @main(%x1: tensor<4x2xf32, #X1>, %x2: tensor<4x2xf32, #X1>, %w1: tensor<2x2xf32, #P1> {dist.role = "parameter"}, %w2: tensor<2x2xf32, #P2> {dist.role = "parameter"}) -> (tensor<4x2xf32, #X2>, tensor<4x2xf32, #X2>) {
  %a = func.call @first(%x1, %w1) : (tensor<4x2xf32, #X1>, tensor<2x2xf32, #P1>) -> tensor<4x2xf32, #X1>
  %b = dist.send %a : tensor<4x2xf32, #X1> -> tensor<4x2xf32, #X2>
  %c = func.call @second(%b, %w2) : (tensor<4x2xf32, #X2>, tensor<2x2xf32, #P2>) -> tensor<4x2xf32, #X2>
  %d = func.call @first(%x2, %w1) : (tensor<4x2xf32, #X1>, tensor<2x2xf32, #P1>) -> tensor<4x2xf32, #X1>
  %e = dist.send %d : tensor<4x2xf32, #X1> -> tensor<4x2xf32, #X2>
  %f = func.call @second(%e, %w2) : (tensor<4x2xf32, #X2>, tensor<2x2xf32, #P2>) -> tensor<4x2xf32, #X2>
  func.return %c, %f : tensor<4x2xf32, #X2>, tensor<4x2xf32, #X2>
}
