// RUN: distir-opt %s --split-input-file -p fuse-operators,compute-in-messages | filecheck %s
// RUN: distir-opt %s --split-input-file -p fuse-operators,compute-in-messages | distir-opt --split-input-file -t torch | filecheck %s --check-prefix TORCH

// Products of two matrices that a message reduces are computed in its memory, the transposed
// operands as they are, if they make up nine tenths of it; a sum of a bias's gradients is copied.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 2.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]

func.func @main(%dy: tensor<8x4xf32>, %x: tensor<8x6xf32>, %w: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  %axes = onnx.Constant() {value = dense<0> : tensor<1xi64>} : () -> tensor<1xi64>
  %bias = onnx.ReduceSum(%dy, %axes) {keepdims = 0} : (tensor<8x4xf32>, tensor<1xi64>) -> tensor<4xf32>
  %weight = onnx.Gemm(%dy, %x) {transA = 1} : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %other = onnx.MatMul(%w, %x) : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %a = collective.rank.all_reduce %bias over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh, dist.asynchronous, dist.bucket = 0 : i64} : tensor<4xf32> -> tensor<4xf32>
  %b = collective.rank.all_reduce %weight over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh, dist.asynchronous, dist.bucket = 0 : i64} : tensor<4x6xf32> -> tensor<4x6xf32>
  %c = collective.rank.all_reduce %other over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh, dist.asynchronous, dist.bucket = 0 : i64} : tensor<4x6xf32> -> tensor<4x6xf32>
  %d = collective.wait %a : tensor<4xf32>
  %e = collective.wait %b : tensor<4x6xf32>
  %f = collective.wait %c : tensor<4x6xf32>
  func.return %d, %e, %f : tensor<4xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// CHECK:        %bias = onnx.ReduceSum(%dy, %axes)
// CHECK-NEXT:   %bucket = torch.bucket : tensor<52xf32>
// CHECK-NEXT:   %weight = torch.product_into %dy, %x, %bucket {start = 4 : i64, x_transposed}
// CHECK-NEXT:   %other = torch.product_into %w, %x, %bucket {start = 28 : i64}
// CHECK-NEXT:   torch.message %bias, %weight, %other, %bucket {{.*}}kind = "all_reduce", reduction = "sum", in_bucket}
// TORCH:          bucket = torch.empty(52, dtype=torch.float32, device=devices.here())
// TORCH-NEXT:     weight = torch.mm(dy.t(), x, out=bucket[4:28].view((4, 6)))
// TORCH-NEXT:     other = torch.mm(w, x, out=bucket[28:52].view((4, 6)))
// TORCH:            (bias, weight, other), self.mesh.group('d'), reduction='sum', bucket=bucket,

// -----

// A product that is used elsewhere too stays, as does one that is scaled. Without products there
// is no bucket.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 1.0 : f64}
  device.link @wire spans 2 {bandwidth = 2.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0 to 2]

func.func @main(%dy: tensor<8x4xf32>, %x: tensor<8x6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>) {
  %weight = onnx.Gemm(%dy, %x) {transA = 1} : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %scaled = onnx.Gemm(%dy, %x) {transA = 1, alpha = 2.0} : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %a = collective.rank.all_reduce %weight over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh, dist.bucket = 0 : i64} : tensor<4x6xf32> -> tensor<4x6xf32>
  %b = collective.rank.all_reduce %scaled over [d] {group = array<i64: 0, 1>, reduction = "sum", mesh = @mesh, dist.bucket = 0 : i64} : tensor<4x6xf32> -> tensor<4x6xf32>
  func.return %a, %b, %weight : tensor<4x6xf32>, tensor<4x6xf32>, tensor<4x6xf32>
}

// CHECK:        %weight = onnx.Gemm
// CHECK-NEXT:   %scaled = onnx.Gemm
// CHECK-NEXT:   torch.message %weight, %scaled {{.*}}reduction = "sum"}
