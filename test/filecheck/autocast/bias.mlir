// RUN: distir-opt %s -p autocast | filecheck %s

// The bias of a linear layer is added in bf16, as its product is computed; what else is added to it is not.
// CHECK: onnx.MatMul({{.*}}) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK-NEXT: %y = onnx.Add({{.*}}) : (tensor<8xbf16>, tensor<4x8xbf16>) -> tensor<4x8xbf16>
// CHECK: %z = onnx.Add({{.*}}) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
func.func @main(
    %x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"},
    %b: tensor<8xf32> {dist.role = "parameter", dist.name = "b"}
) -> tensor<4x8xf32> {
  %p = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %y = onnx.Add(%b, %p) : (tensor<8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = onnx.Add(%y, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %z : tensor<4x8xf32>
}
