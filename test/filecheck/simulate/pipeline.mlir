// DistIR's Figure 2: training a two-layer MLP as a pipeline of two stages with two
// micro-batches; every op and every send takes one second. The second run swaps lines 20
// and 21 of the figure: the send of %ar_2 then blocks both devices before %p_1, which
// costs the two seconds that %p_1 took beside %as_2 (Figure 3).
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s
// RUN: sed -e '/^  %%p_1 = /{h;d' -e '}' -e '/^  %%ar_2 = /G' %s | distir-opt -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix SWAPPED

// CHECK:      step time 33 s, 0.242424 samples/s, 44 ops on 2 of the devices of @pair
// CHECK-NEXT: device  peak memory [B]  of [B]  sent [B]  FLOPs  compute [s]  communication [s]  idle [s]
// CHECK-NEXT: 0  4096  1000000  512  16384  19  4  10
// CHECK-NEXT: 1  4096  1000000  512  16384  21  4  8

// SWAPPED:      step time 35 s
// SWAPPED:      0  4096  1000000  512  16384  19  4  12
// SWAPPED-NEXT: 1  4096  1000000  512  16384  21  4  10

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 1.0e+30 : f64, latency = 1.0 : f64}
}
device.mesh @D1 on @pair <> [0]
device.mesh @D2 on @pair <> [1]
#D1 = #dist.layout<@D1>
#D2 = #dist.layout<@D2>

func.func @dense_1(%w: tensor<16x16xf32, #D1>, %x: tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1> {
  %h = onnx.MatMul(%x, %w) : (tensor<4x16xf32, #D1>, tensor<16x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %a = onnx.Relu(%h) : (tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  func.return %a : tensor<4x16xf32, #D1>
}
func.func @dense_gradient_1(%w: tensor<16x16xf32, #D1>, %x: tensor<4x16xf32, #D1>, %da: tensor<4x16xf32, #D1>) -> (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>) {
  %h = onnx.MatMul(%x, %w) : (tensor<4x16xf32, #D1>, tensor<16x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %a = onnx.Relu(%h) : (tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %slope = onnx.Sign(%a) : (tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %dh = onnx.Mul(%da, %slope) : (tensor<4x16xf32, #D1>, tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %dw = onnx.Gemm(%x, %dh) {transA = 1 : i64} : (tensor<4x16xf32, #D1>, tensor<4x16xf32, #D1>) -> tensor<16x16xf32, #D1>
  %dx = onnx.Gemm(%dh, %w) {transB = 1 : i64} : (tensor<4x16xf32, #D1>, tensor<16x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  func.return %dw, %dx : tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>
}
func.func @update_1(%w: tensor<16x16xf32, #D1>, %dw_1: tensor<16x16xf32, #D1>, %dw_2: tensor<16x16xf32, #D1>) -> tensor<16x16xf32, #D1> {
  %dw = onnx.Add(%dw_1, %dw_2) : (tensor<16x16xf32, #D1>, tensor<16x16xf32, #D1>) -> tensor<16x16xf32, #D1>
  %new = onnx.Sub(%w, %dw) : (tensor<16x16xf32, #D1>, tensor<16x16xf32, #D1>) -> tensor<16x16xf32, #D1>
  func.return %new : tensor<16x16xf32, #D1>
}
func.func @dense_2(%w: tensor<16x16xf32, #D2>, %x: tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2> {
  %h = onnx.MatMul(%x, %w) : (tensor<4x16xf32, #D2>, tensor<16x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %a = onnx.Relu(%h) : (tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  func.return %a : tensor<4x16xf32, #D2>
}
func.func @dense_gradient_2(%w: tensor<16x16xf32, #D2>, %x: tensor<4x16xf32, #D2>, %da: tensor<4x16xf32, #D2>) -> (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>) {
  %h = onnx.MatMul(%x, %w) : (tensor<4x16xf32, #D2>, tensor<16x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %a = onnx.Relu(%h) : (tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %slope = onnx.Sign(%a) : (tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %dh = onnx.Mul(%da, %slope) : (tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %dw = onnx.Gemm(%x, %dh) {transA = 1 : i64} : (tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<16x16xf32, #D2>
  %dx = onnx.Gemm(%dh, %w) {transB = 1 : i64} : (tensor<4x16xf32, #D2>, tensor<16x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  func.return %dw, %dx : tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>
}
func.func @update_2(%w: tensor<16x16xf32, #D2>, %dw_1: tensor<16x16xf32, #D2>, %dw_2: tensor<16x16xf32, #D2>) -> tensor<16x16xf32, #D2> {
  %dw = onnx.Add(%dw_1, %dw_2) : (tensor<16x16xf32, #D2>, tensor<16x16xf32, #D2>) -> tensor<16x16xf32, #D2>
  %new = onnx.Sub(%w, %dw) : (tensor<16x16xf32, #D2>, tensor<16x16xf32, #D2>) -> tensor<16x16xf32, #D2>
  func.return %new : tensor<16x16xf32, #D2>
}
func.func @loss_gradient(%p: tensor<4x16xf32, #D2>, %y: tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2> {
  %dp = onnx.Sub(%p, %y) : (tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  func.return %dp : tensor<4x16xf32, #D2>
}

func.func @main(%w1: tensor<16x16xf32, #D1> {dist.role = "parameter"}, %w2: tensor<16x16xf32, #D2> {dist.role = "parameter"}, %x: tensor<8x16xf32, #D1> {dist.role = "input"}, %y: tensor<8x16xf32, #D2> {dist.role = "label"}) -> (tensor<16x16xf32, #D1>, tensor<16x16xf32, #D2>) {
  %x_1, %x_2 = onnx.Split(%x) {num_outputs = 2 : i64} : (tensor<8x16xf32, #D1>) -> (tensor<4x16xf32, #D1>, tensor<4x16xf32, #D1>)
  %y_1, %y_2 = onnx.Split(%y) {num_outputs = 2 : i64} : (tensor<8x16xf32, #D2>) -> (tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>)
  %as_1 = func.call @dense_1(%w1, %x_1) : (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %ar_1 = dist.send %as_1 : tensor<4x16xf32, #D1> -> tensor<4x16xf32, #D2>
  %as_2 = func.call @dense_1(%w1, %x_2) : (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>) -> tensor<4x16xf32, #D1>
  %p_1 = func.call @dense_2(%w2, %ar_1) : (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %ar_2 = dist.send %as_2 : tensor<4x16xf32, #D1> -> tensor<4x16xf32, #D2>
  %dp_1 = func.call @loss_gradient(%p_1, %y_1) : (tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %dw2_1, %das_1 = func.call @dense_gradient_2(%w2, %ar_1, %dp_1) : (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>)
  %dar_1 = dist.send %das_1 : tensor<4x16xf32, #D2> -> tensor<4x16xf32, #D1>
  %dw1_1, %dx_1 = func.call @dense_gradient_1(%w1, %x_1, %dar_1) : (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>, tensor<4x16xf32, #D1>) -> (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>)
  %p_2 = func.call @dense_2(%w2, %ar_2) : (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %dp_2 = func.call @loss_gradient(%p_2, %y_2) : (tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> tensor<4x16xf32, #D2>
  %dw2_2, %das_2 = func.call @dense_gradient_2(%w2, %ar_2, %dp_2) : (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>, tensor<4x16xf32, #D2>) -> (tensor<16x16xf32, #D2>, tensor<4x16xf32, #D2>)
  %dar_2 = dist.send %das_2 : tensor<4x16xf32, #D2> -> tensor<4x16xf32, #D1>
  %dw1_2, %dx_2 = func.call @dense_gradient_1(%w1, %x_2, %dar_2) : (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>, tensor<4x16xf32, #D1>) -> (tensor<16x16xf32, #D1>, tensor<4x16xf32, #D1>)
  %w1_new = func.call @update_1(%w1, %dw1_1, %dw1_2) : (tensor<16x16xf32, #D1>, tensor<16x16xf32, #D1>, tensor<16x16xf32, #D1>) -> tensor<16x16xf32, #D1>
  %w2_new = func.call @update_2(%w2, %dw2_1, %dw2_2) : (tensor<16x16xf32, #D2>, tensor<16x16xf32, #D2>, tensor<16x16xf32, #D2>) -> tensor<16x16xf32, #D2>
  func.return %w1_new, %w2_new : tensor<16x16xf32, #D1>, tensor<16x16xf32, #D2>
}
