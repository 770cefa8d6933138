// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd momentum=0.9},distribute{d=2 zero=3 buckets=false}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd momentum=0.9},distribute{d=2 zero=2 buckets=false}" | filecheck %s --check-prefix=TWO
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd momentum=0.9},distribute{d=2 zero=1 buckets=false}" | filecheck %s --check-prefix=ONE

// Figure 9 of the DistIR paper: ZeRO stages 2 and 3 for an MLP of two layers over two
// devices. There each device owns one of the matrices; here each owns half of both. A
// matrix is gathered for its use in the forward and, since that copy is freed right
// after, again for its use in the backward. Gradients go to their owners as soon as they
// are computed, and an owner updates its part without further communication.

// CHECK:       %w1: tensor<16x32xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-SAME:  %w2: tensor<32x4xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-SAME:  %w1_momentum: tensor<16x32xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-SAME:  -> (tensor<f32, #dist.layout<@mesh>> {dist.role = "loss", dist.name = "loss"}, tensor<16x32xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-NEXT:  %[[W1:.*]] = collective.all_gather %w1 over [d]
// CHECK-NEXT:  %[[H:.*]] = onnx.MatMul(%x, %[[W1]])
// CHECK-NEXT:  %[[A:.*]] = onnx.Relu(%[[H]])
// CHECK-NEXT:  %[[W2F:.*]] = collective.all_gather %w2 over [d]
// CHECK-NEXT:  onnx.MatMul(%[[A]], %[[W2F]])
// CHECK-NOT:   %[[W2F]])
// CHECK:       %[[W2B:.*]] = collective.all_gather %w2 over [d]
// CHECK-NEXT:  onnx.Gemm({{.*}}, %[[W2B]]) {transB = 1 : i64}
// CHECK:       %[[DW2:.*]] = onnx.Gemm(%[[A]], {{.*}}partial sum {d}>>
// CHECK-NEXT:  %[[R2:.*]] = collective.reduce_scatter %[[DW2]] over [d]
// CHECK:       %[[DW1:.*]] = onnx.Gemm(%x, {{.*}}partial sum {d}>>
// CHECK-NEXT:  %[[R1:.*]] = collective.reduce_scatter %[[DW1]] over [d]
// CHECK-NEXT:  train.sgd %w1, %[[R1]] momentum %w1_momentum
// CHECK-NEXT:  train.sgd %w2, %[[R2]] momentum %w2_momentum
// CHECK-NEXT:  collective.all_reduce {{.*}} tensor<f32,
// CHECK-NEXT:  func.return

// With stage 2 parameters are whole and updated ones gathered.
// TWO-NOT:  all_gather
// TWO:      %[[DW2:.*]] = onnx.Gemm(%a, {{.*}}partial sum {d}>>
// TWO-NEXT: collective.reduce_scatter %[[DW2]] over [d]
// TWO:      train.sgd
// TWO-COUNT-2: collective.all_gather

// With stage 1 gradients are reduced where they are needed: at the updates.
// ONE:      %[[DW2:.*]] = onnx.Gemm(%a, {{.*}}partial sum {d}>>
// ONE-NOT:  collective
// ONE:      %[[DW1:.*]] = onnx.Gemm(%x, {{.*}}partial sum {d}>>
// ONE:      %[[R1:.*]] = collective.reduce_scatter %[[DW1]] over [d]
// ONE:      train.sgd %{{.*}}, %[[R1]]
// ONE:      %[[R2:.*]] = collective.reduce_scatter %[[DW2]] over [d]
// ONE:      train.sgd %{{.*}}, %[[R2]]
// ONE-COUNT-2: collective.all_gather

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<32x4xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x4xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %a = onnx.Relu(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %p = onnx.MatMul(%a, %w2) : (tensor<8x32xf32>, tensor<32x4xf32>) -> tensor<8x4xf32>
  func.return %p : tensor<8x4xf32>
}
