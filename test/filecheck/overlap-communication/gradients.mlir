// RUN: distir-opt %s -p overlap-communication | filecheck %s
// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix BEFORE
// RUN: distir-opt %s -p overlap-communication,simulate 2>&1 >/dev/null | filecheck %s --check-prefix AFTER
// RUN: distir-opt %s -p "overlap-communication,project{rank=0}" | filecheck %s --check-prefix RANK
// RUN: distir-opt %s -p "overlap-communication,project{rank=0}" -t torch | filecheck %s --check-prefix TORCH

// The backward pass of two layers, called @layer, and their optimizer: data-parallel on two
// devices. The gradient of each weight is reduced over "d" where the optimizer takes it,
// so the devices compute nothing meanwhile: 2 x 2 s for the layers, 2 x 1 s for the
// updates, 2 x 8 s for the all-reduces of 16 bytes.
// BEFORE: step time 22 s
// BEFORE: exposed communication 0.727273

// Afterwards each gradient is reduced in the function that computes it, as soon as it is
// there, while that goes on (%dx). The function returns it on its way; its caller waits where
// it uses it. As the second layer's gradient arrives first, its update now comes first, and
// the other gradient still arrives meanwhile: only 12 of 16 s are waited for.
// AFTER: step time 18 s
// AFTER: exposed communication 0.666667

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 2.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]
#W = #dist.layout<@mesh>
#D = #dist.layout<@mesh, [{d}, {}]>
#P = #dist.layout<@mesh, [], partial sum {d}>

// CHECK:       func.func private @layer_and_reduce(
// CHECK-NEXT:    %dw = onnx.Gemm(%x, %dy) {transA = 1 : i64}
// CHECK-NEXT:    %[[R:.*]] = collective.all_reduce %dw over [d] {dist.asynchronous}
// CHECK-NEXT:    %dx = onnx.Gemm(%dy, %w) {transB = 1 : i64}
// CHECK-NEXT:    func.return %dx, %[[R]]
func.func private @layer(%x: tensor<4x2xf32, #D>, %w: tensor<2x2xf32, #W>, %dy: tensor<4x2xf32, #D>) -> (tensor<4x2xf32, #D>, tensor<2x2xf32, #P>) {
  %dw = onnx.Gemm(%x, %dy) {transA = 1 : i64} : (tensor<4x2xf32, #D>, tensor<4x2xf32, #D>) -> tensor<2x2xf32, #P>
  %dx = onnx.Gemm(%dy, %w) {transB = 1 : i64} : (tensor<4x2xf32, #D>, tensor<2x2xf32, #W>) -> tensor<4x2xf32, #D>
  func.return %dx, %dw : tensor<4x2xf32, #D>, tensor<2x2xf32, #P>
}

// CHECK:       func.func @main
// CHECK-NEXT:    %d1, %[[R2:.*]] = func.call @layer_and_reduce(%x2, %w2, %d2)
// CHECK-NEXT:    %d0, %[[R1:.*]] = func.call @layer_and_reduce(%x1, %w1, %d1)
// CHECK-NEXT:    %n2 = onnx.Sub(%w2, %[[R2]])
// CHECK-NEXT:    %n1 = onnx.Sub(%w1, %[[R1]])
// CHECK-NEXT:    func.return %n1, %n2
func.func @main(%x1: tensor<4x2xf32, #D>, %x2: tensor<4x2xf32, #D>, %w1: tensor<2x2xf32, #W>, %w2: tensor<2x2xf32, #W>, %d2: tensor<4x2xf32, #D>) -> (tensor<2x2xf32, #W>, tensor<2x2xf32, #W>) {
  %d1, %g2 = func.call @layer(%x2, %w2, %d2) : (tensor<4x2xf32, #D>, tensor<2x2xf32, #W>, tensor<4x2xf32, #D>) -> (tensor<4x2xf32, #D>, tensor<2x2xf32, #P>)
  %d0, %g1 = func.call @layer(%x1, %w1, %d1) : (tensor<4x2xf32, #D>, tensor<2x2xf32, #W>, tensor<4x2xf32, #D>) -> (tensor<4x2xf32, #D>, tensor<2x2xf32, #P>)
  %r1 = collective.all_reduce %g1 over [d] : tensor<2x2xf32, #P> -> tensor<2x2xf32, #W>
  %n1 = onnx.Sub(%w1, %r1) : (tensor<2x2xf32, #W>, tensor<2x2xf32, #W>) -> tensor<2x2xf32, #W>
  %r2 = collective.all_reduce %g2 over [d] : tensor<2x2xf32, #P> -> tensor<2x2xf32, #W>
  %n2 = onnx.Sub(%w2, %r2) : (tensor<2x2xf32, #W>, tensor<2x2xf32, #W>) -> tensor<2x2xf32, #W>
  func.return %n1, %n2 : tensor<2x2xf32, #W>, tensor<2x2xf32, #W>
}

// In the program of one device, waiting is an op of its own.
// RANK:       func.func private @layer_and_reduce(
// RANK:         %[[R:.*]] = collective.rank.all_reduce %dw over [d] {{.*}}dist.asynchronous
// RANK:         func.return %dx, %[[R]]
// RANK:       func.func @main
// RANK:         %d1, %[[A2:.*]] = func.call @layer_and_reduce(%x2, %w2, %d2)
// RANK-NEXT:    %d0, %[[A1:.*]] = func.call @layer_and_reduce(%x1, %w1, %d1)
// RANK-NEXT:    %[[W2:.*]] = collective.wait %[[A2]]
// RANK-NEXT:    %n2 = onnx.Sub(%w2, %[[W2]])
// RANK-NEXT:    %[[W1:.*]] = collective.wait %[[A1]]
// RANK-NEXT:    %n1 = onnx.Sub(%w1, %[[W1]])

// TORCH:      def forward
// TORCH:        = collectives.wait(
// TORCH:      def layer_and_reduce
// TORCH:        [[R:[a-z_0-9]+]] = collectives.start_all_reduce(
// TORCH-NEXT:     dw, self.mesh.group('d'), reduction='sum', in_place=True,
// TORCH:        return dx, [[R]]
