// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{t=2 cluster=cpu sharded-outputs=true}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{d=2 t=2 cluster=cpu sharded-outputs=true}" | filecheck %s --check-prefix BOTH
// RUN: distir-opt %s -p "differentiate{loss=outside optimizer=none},distribute{t=2 cluster=cpu}" | filecheck %s --check-prefix WHOLE

// Logits leave the program split over words, and their gradient comes so. Without the option
// gathering them would cost more than it saves to split this small head.
// CHECK:      %logits_gradient: tensor<8x64xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK-SAME: -> (tensor<8x64xf32, #dist.layout<@mesh, [{}, {t}]>> {dist.name = "logits"}
// CHECK-NOT:  collective.all_gather
// BOTH:       %logits_gradient: tensor<8x64xf32, #dist.layout<@mesh, [{d}, {t}]>>
// BOTH-SAME:  -> (tensor<8x64xf32, #dist.layout<@mesh, [{d}, {t}]>> {dist.name = "logits"}
// WHOLE:      %logits_gradient: tensor<8x64xf32, #dist.layout<@mesh>>
// WHOLE-SAME: -> (tensor<8x64xf32, #dist.layout<@mesh>> {dist.name = "logits"}
func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<4x64xf32> {dist.role = "parameter", dist.name = "w"}) -> (tensor<8x64xf32> {dist.name = "logits"}) {
  %logits = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x64xf32>) -> tensor<8x64xf32>
  func.return %logits : tensor<8x64xf32>
}
