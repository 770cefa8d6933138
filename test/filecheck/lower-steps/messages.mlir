// RUN: distir-opt %s -p fuse-operators | filecheck %s
// RUN: distir-opt %s -p fuse-operators | distir-opt -t torch | filecheck %s --check-prefix TORCH

// Collectives of one bucket are one message. Its results are in flight, and may be waited for.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 2.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]

func.func @main(%x: tensor<4x4xf32>, %y: tensor<4xf32>) -> (tensor<2x4xf32>, tensor<2xf32>) {
  %a = collective.rank.reduce_scatter %x over [d] {group = array<i64: 0, 1>, reduction = "sum", dim = 0 : i64, mesh = @mesh, dist.asynchronous, dist.bucket = 0 : i64} : tensor<4x4xf32> -> tensor<2x4xf32>
  %b = collective.rank.reduce_scatter %y over [d] {group = array<i64: 0, 1>, reduction = "sum", dim = 0 : i64, run = 1 : i64, mesh = @mesh, dist.asynchronous, dist.bucket = 0 : i64} : tensor<4xf32> -> tensor<2xf32>
  %c = collective.wait %a : tensor<2x4xf32>
  %d = collective.wait %b : tensor<2xf32>
  func.return %c, %d : tensor<2x4xf32>, tensor<2xf32>
}

// CHECK:        %a, %b = torch.message %x, %y {dist.asynchronous, mesh = @mesh, axes = ["d"], kind = "reduce_scatter", reduction = "sum", dims = array<i64: 0, 0>, runs = array<i64: -1, 1>}
// CHECK-NEXT:   %c = collective.wait %a
// TORCH:          a, b = buckets.start_reduce_scatter(
// TORCH-NEXT:         (x, y), self.mesh.group('d'), ((0, None), (0, 1)), reduction='sum',
