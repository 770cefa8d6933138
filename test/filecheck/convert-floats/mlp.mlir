// RUN: distir-opt %s -p convert-floats | filecheck %s
// RUN: distir-opt %s -p 'convert-floats{dtype=f16 stored=false}' | filecheck %s --check-prefix=CAST

// Parameters and what is computed are bf16; the mask, a constant, is cast where it is added, with the
// lowest value that bf16 has in the place of one that it does not have.
// CHECK: func.func @main(%x: tensor<4x8xf32> {{.*}}, %w: tensor<8x8xbf16> {{.*}}, %scale: tensor<8xf32> {{.*}}) -> tensor<4x8xbf16>
// CHECK-NEXT: %[[X:.*]] = onnx.Cast(%x) {to = 16 : i64} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
// CHECK-NEXT: onnx.Cast(%scale) {to = 16 : i64}
// CHECK-NEXT: onnx.MatMul(%[[X]], %w) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
// CHECK: %hidden = onnx.Where(%long, {{.*}}) : (tensor<8xi1>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
// CHECK: onnx.Clip(%hidden
// CHECK: onnx.Cast({{.*}}) {to = 16 : i64} : (tensor<8xf32>) -> tensor<8xbf16>
// CHECK: onnx.Add({{.*}}) : (tensor<4x8xbf16>, tensor<8xbf16>) -> tensor<4x8xbf16>
// CHECK: onnx.Mul({{.*}}) : (tensor<4x8xbf16>, tensor<8xbf16>) -> tensor<4x8xbf16>

// The parameter stays f32 and is cast before everything else.
// CAST: func.func @main(%x: tensor<4x8xf32> {{.*}}, %w: tensor<8x8xf32>
// CAST-NEXT: onnx.Cast(%x) {to = 10 : i64}
// CAST-NEXT: onnx.Cast(%w) {to = 10 : i64} : (tensor<8x8xf32>) -> tensor<8x8xf16>
func.func @main(
    %x: tensor<4x8xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"},
    %scale: tensor<8xf32> {dist.role = "constant", dist.name = "scale"}
) -> tensor<4x8xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %places = onnx.Constant() {value = dense<[0, 1, 2, 3, 4, 5, 6, 7]> : tensor<8xi64>} : () -> tensor<8xi64>
  %last = onnx.Constant() {value = dense<6> : tensor<i64>} : () -> tensor<i64>
  %long = onnx.Less(%places, %last) : (tensor<8xi64>, tensor<i64>) -> tensor<8xi1>
  %zero = onnx.Constant() {value = dense<0.0> : tensor<f32>} : () -> tensor<f32>
  %lowest = onnx.Constant() {value = dense<-3.4028234663852886E+38> : tensor<f32>} : () -> tensor<f32>
  %hidden = onnx.Where(%long, %zero, %lowest) : (tensor<8xi1>, tensor<f32>, tensor<f32>) -> tensor<8xf32>
  %m = onnx.Add(%h, %hidden) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  %y = onnx.Mul(%m, %scale) : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
