// RUN: distir-opt %s -t torch | filecheck %s

// Sums and all-reduces work in an operand that nobody else needs: not in an argument of the
// program, in a value that is on its way to another rank, or in one that is used later.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 2.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]

func.func @main(%x: tensor<4x4xf32> {dist.role = "input", dist.name = "x"}, %y: tensor<4x4xf32> {dist.role = "input", dist.name = "y"}) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %p = onnx.MatMul(%x, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = onnx.Add(%x, %p) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %q = onnx.MatMul(%y, %y) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  collective.send %q to 1 {dist.asynchronous} : tensor<4x4xf32>
  %t = onnx.Add(%q, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %a = onnx.MatMul(%x, %t) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %b = onnx.MatMul(%t, %t) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %m = collective.rank.all_reduce %a over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh} : tensor<4x4xf32> -> tensor<4x4xf32>
  %n = collective.rank.all_reduce %b over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh} : tensor<4x4xf32> -> tensor<4x4xf32>
  func.return %s, %t, %m, %n, %b : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}

// CHECK:     s = p.add_(x)
// CHECK:     t = q + x
// CHECK:     collectives.all_reduce(a, self.mesh.group('d'), reduction='sum', in_place=True)
// CHECK:     collectives.all_reduce(b, self.mesh.group('d'), reduction='sum')
