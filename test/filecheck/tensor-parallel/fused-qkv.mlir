// RUN: distir-opt %s -p "tensor-parallel" | filecheck %s

// A fused QKV is split by heads: of each 32 columns (q, k, v) a device holds runs of 16.
// The row-split output projection closes the block.

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK:      %qkv: tensor<32x96xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{}, {t:16}]>}
// CHECK-SAME: %out: tensor<32x32xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{t}, {}]>}
func.func @main(
  %x: tensor<2x8x32xf32> {dist.role = "input"},
  %qkv: tensor<32x96xf32> {dist.role = "parameter"},
  %out: tensor<32x32xf32> {dist.role = "parameter"}
) -> tensor<2x8x32xf32> {
  %heads = onnx.Constant() {value = dense<[2, 8, 4, 8]> : tensor<4xi64>} : () -> tensor<4xi64>
  %flat = onnx.Constant() {value = dense<[2, 8, 32]> : tensor<3xi64>} : () -> tensor<3xi64>
  %p = onnx.MatMul(%x, %qkv) : (tensor<2x8x32xf32>, tensor<32x96xf32>) -> tensor<2x8x96xf32>
  %q, %k, %v = onnx.Split(%p) {axis = 2 : i64, num_outputs = 3 : i64} : (tensor<2x8x96xf32>) -> (tensor<2x8x32xf32>, tensor<2x8x32xf32>, tensor<2x8x32xf32>)
  %q4 = onnx.Reshape(%q, %heads) : (tensor<2x8x32xf32>, tensor<4xi64>) -> tensor<2x8x4x8xf32>
  %k4 = onnx.Reshape(%k, %heads) : (tensor<2x8x32xf32>, tensor<4xi64>) -> tensor<2x8x4x8xf32>
  %v4 = onnx.Reshape(%v, %heads) : (tensor<2x8x32xf32>, tensor<4xi64>) -> tensor<2x8x4x8xf32>
  %qh = onnx.Transpose(%q4) {perm = [0, 2, 1, 3]} : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
  %kh = onnx.Transpose(%k4) {perm = [0, 2, 3, 1]} : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
  %vh = onnx.Transpose(%v4) {perm = [0, 2, 1, 3]} : (tensor<2x8x4x8xf32>) -> tensor<2x4x8x8xf32>
  %s = onnx.MatMul(%qh, %kh) : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %a = onnx.Softmax(%s) {axis = -1 : i64} : (tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %o = onnx.MatMul(%a, %vh) : (tensor<2x4x8x8xf32>, tensor<2x4x8x8xf32>) -> tensor<2x4x8x8xf32>
  %ot = onnx.Transpose(%o) {perm = [0, 2, 1, 3]} : (tensor<2x4x8x8xf32>) -> tensor<2x8x4x8xf32>
  %of = onnx.Reshape(%ot, %flat) : (tensor<2x8x4x8xf32>, tensor<3xi64>) -> tensor<2x8x32xf32>
  %y = onnx.MatMul(%of, %out) : (tensor<2x8x32xf32>, tensor<32x32xf32>) -> tensor<2x8x32xf32>
  %z = onnx.Add(%y, %x) : (tensor<2x8x32xf32>, tensor<2x8x32xf32>) -> tensor<2x8x32xf32>
  func.return %z : tensor<2x8x32xf32>
}
