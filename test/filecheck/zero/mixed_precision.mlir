// RUN: distir-opt %s -p 'convert-floats{stored=false},differentiate{loss=mse optimizer=none},distribute{d=2 zero=1}' | filecheck %s
// RUN: distir-opt %s -p 'convert-floats{stored=false},differentiate{loss=mse optimizer=none},distribute{d=2 zero=3}' | filecheck %s

// A parameter in f32 that is cast once is brought together in bf16, half of the bytes; its gradient is
// reduced in f32.
// CHECK: onnx.Cast(%w) {to = 16 : i64} : (tensor<64x64xf32, #dist.layout<@mesh, [{d}, {}]>>) -> tensor<64x64xbf16
// CHECK: collective.all_gather {{.*}} : tensor<64x64xbf16, #dist.layout<@mesh, [{d}, {}]>> -> tensor<64x64xbf16
// CHECK-NOT: collective.all_gather
// CHECK: collective.reduce_scatter {{.*}} : tensor<64x64xf32
func.func @main(
    %x: tensor<8x64xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w"}
) -> tensor<8x64xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  func.return %h : tensor<8x64xf32>
}
