// RUN: distir-opt %s -p "differentiate{loss=mse gradient-dtype=f32}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse gradient-dtype=f32},distribute{d=2}" | filecheck %s --check-prefix=DATA
// RUN: distir-opt %s -p "differentiate{loss=mse gradient-dtype=f32},distribute{d=2 zero=2}" | filecheck %s --check-prefix=ZERO
// RUN: distir-opt %s -p "differentiate{loss=mse},distribute{d=2}" | filecheck %s --check-prefix=NARROW
// RUN: not distir-opt %s -p "differentiate{loss=mse gradient-dtype=f64}" 2>&1 | filecheck %s --check-prefix=DTYPE

// Both uses of the matrix have a gradient in bf16. Each is cast, then they are added.
// CHECK:      %[[B:.*]] = onnx.Gemm({{.*}} -> tensor<8x8xbf16>
// CHECK-NEXT: %[[WIDE_B:.*]] = onnx.Cast(%[[B]]) {to = 1 : i64, dist.reduce_late}
// CHECK:      %[[A:.*]] = onnx.Gemm({{.*}} -> tensor<8x8xbf16>
// CHECK-NEXT: %[[WIDE_A:.*]] = onnx.Cast(%[[A]]) {to = 1 : i64, dist.reduce_late}
// CHECK-NEXT: %[[SUM:.*]] = onnx.Add(%[[WIDE_B]], %[[WIDE_A]])
// CHECK:      train.adamw %w_master, %[[SUM]],

// Partial sums are cast too: bytes saved by reducing them before are not worth the digits.
// DATA-COUNT-2: onnx.Cast{{.*}}xbf16, {{.*}}partial sum {d}>>) -> tensor<8x8xf32, #dist.layout<@mesh, partial sum {d}>>
// DATA:         %[[SUM:.*]] = onnx.Add({{.*}}partial sum {d}>>
// DATA:         collective.all_reduce %[[SUM]] over [d] {dist.bucket = 0 : i64} : tensor<8x8xf32

// ZERO:      %[[SUM:.*]] = onnx.Add({{.*}}partial sum {d}>>
// ZERO-NEXT: collective.reduce_scatter %[[SUM]] over [d] : tensor<8x8xf32

// NARROW-NOT: collective.all_reduce {{.*}} : tensor<8x8xf32
// NARROW:     collective.all_reduce {{.*}} : tensor<8x8xbf16

// DTYPE: error: differentiate: there is no type of gradients 'f64'; choose one of parameter, f32

func.func @main(%x: tensor<4x8xbf16> {dist.role = "input", dist.name = "x"}, %w: tensor<8x8xbf16> {dist.role = "parameter", dist.name = "w"}) -> tensor<4x8xbf16> {
  %h = onnx.MatMul(%x, %w) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %y = onnx.MatMul(%h, %w) : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  func.return %y : tensor<4x8xbf16>
}
