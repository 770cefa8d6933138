// RUN: distir-opt %s -p "differentiate{optimizer=sgd},propagate-sharding,partition" | filecheck %s
// RUN: distir-opt %s -p "differentiate{optimizer=sgd},propagate-sharding,partition,project{rank=1}" | filecheck %s --check-prefix=RANK

// The logits of a matrix that is split by columns stay where they are. Devices exchange a
// number per label: the maximum and the sum of exponentials of its logits, and the logit of
// the label, which one of them holds. The gradient needs nothing else.

device.mesh @mesh on @box <t = 2> [0 to 2]

// CHECK: %[[LOGITS:.*]] = onnx.MatMul(%x, %w)
// CHECK-SAME: -> tensor<64x128xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK: %[[HERE:.*]] = train.logit_maximum %[[LOGITS]]
// CHECK-SAME: partial max {t}
// CHECK: %[[MAXIMUM:.*]] = collective.all_reduce %[[HERE]] over [t]
// CHECK: %[[TERM:.*]] = train.exponential_sum %[[LOGITS]], %[[MAXIMUM]]
// CHECK: %[[CHOSEN:.*]] = train.label_logit %[[LOGITS]], %labels
// CHECK: %[[TOTAL:.*]] = collective.all_reduce %[[TERM]] over [t]
// CHECK: %[[LABEL:.*]] = collective.all_reduce %[[CHOSEN]] over [t]
// CHECK: train.cross_entropy_sum %[[MAXIMUM]], %[[TOTAL]], %[[LABEL]], %labels
// CHECK-NOT: collective
// CHECK: train.cross_entropy_part_grad {{.*}}, %[[LOGITS]], %labels, %[[MAXIMUM]], %[[TOTAL]]
// CHECK-NOT: collective
// CHECK: func.return

// On the second device classes start at 64. A label that it does not hold is -1.
// RANK: %[[PLACE:.*]] = onnx.Sub(%labels,
// RANK: onnx.Where(%{{.*}}, %[[PLACE]],
// RANK: train.label_logit %{{.*}}, %[[LOCAL:.*]] {{.*}} : (tensor<64x64xf32>, tensor<64xi64>) -> tensor<64xf32>
func.func @main(
  %x: tensor<64x16xf32> {dist.role = "input", dist.name = "x"},
  %w: tensor<16x128xf32> {dist.role = "parameter", dist.name = "w", dist.layout = #dist.layout<@mesh, [{}, {t}]>}
) -> tensor<64x128xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<64x16xf32>, tensor<16x128xf32>) -> tensor<64x128xf32>
  func.return %y : tensor<64x128xf32>
}
