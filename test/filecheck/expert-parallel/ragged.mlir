// RUN: distir-opt %s -p "expert-parallel" | filecheck %s
// RUN: distir-opt %s -p "expert-parallel,propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=SENT
// RUN: distir-opt %s -p "expert-parallel,propagate-sharding,partition,project{rank=1}" | filecheck %s --check-prefix=RANK
// RUN: distir-opt %s -p "expert-parallel{token_dispatch=gather},propagate-sharding,partition,verify-distribution" | filecheck %s --check-prefix=GATHER
// RUN: not distir-opt %s -p "expert-parallel{token_dispatch=all}" 2>&1 | filecheck %s --check-prefix=UNKNOWN

// A token chooses one of four experts, which four devices share: three of its four rows are
// empty. No token is dropped, so that only the fourth is sent.

device.mesh @mesh on @box <e = 4> [0 to 4]

// CHECK:      %[[X:.*]] = train.dispatch %x, {{.*}} -> tensor<4x8x1x6xf32>
// CHECK-NEXT: %[[OWN:.*]] = dist.constrain %[[X]] to <@mesh, [{}, {e}, {}, {}]> over [e] {dist.ragged}
// CHECK-NEXT: %[[THERE:.*]] = dist.constrain %[[OWN]] to <@mesh, [{e}, {}, {}, {}]> over [e] {dist.ragged}
// CHECK:      %[[Y:.*]] = train.grouped_product %[[THERE]], {{.*}} {taken = 1 : i64, imbalance = 1.3{{.*}} : f64} {{.*}} -> tensor<4x8x1x6xf32>
// CHECK-NEXT: %[[BACK:.*]] = dist.constrain %[[Y]] to <@mesh, [{}, {e}, {}, {}]> over [e] {dist.ragged}
// CHECK-NEXT: train.combine %[[BACK]], %slots, %rows :

// SENT:      train.expert_places %ids {{.*}}#dist.layout<@mesh, [{e}, {}, {}]>>
// SENT:      %[[ARRIVING:.*]] = collective.all_to_all %rows over [e] {{.*}}xi64
// SENT-NEXT: %[[THERE:.*]] = collective.ragged_all_to_all %{{.*}} of %rows to %[[ARRIVING]] over [e] {taken = 1 : i64}
// SENT-NEXT: %[[Y:.*]] = train.grouped_product %[[THERE]], %[[ARRIVING]], %w
// SENT-NEXT: %[[BACK:.*]] = collective.ragged_all_to_all %[[Y]] of %[[ARRIVING]] to %rows over [e] {taken = 1 : i64}
// SENT-NEXT: train.combine %[[BACK]], {{.*}} #dist.layout<@mesh, [{e}, {}, {}]>>

// RANK: collective.rank.ragged_all_to_all %{{.*}} of %rows to %{{.*}} over [e] {mesh = @mesh, group = array<i64: 0, 1, 2, 3>, dim = 1 : i64, split_dim = 0 : i64, taken = 1 : i64} : tensor<4x2x1x6xf32>, tensor<4x2x1xi64>, tensor<1x8x1xi64> -> tensor<1x8x1x6xf32>

// GATHER-NOT: ragged
// GATHER:     %[[ALL:.*]] = collective.all_gather %x over [e]
// GATHER:     train.dispatch %[[ALL]], {{.*}} -> tensor<4x8x1x6xf32, #dist.layout<@mesh, [{e}, {}, {}, {}]>>

// UNKNOWN: error: expert-parallel: there is no way of tokens to experts 'all'; choose one of auto, gather, all-to-all

func.func @main(%x: tensor<8x1x6xf32> {dist.role = "input", dist.name = "x"}, %ids: tensor<8x1x1xi64> {dist.role = "input", dist.name = "ids"}, %w: tensor<4x6x6xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x1x6xf32> {
  %slots, %rows = train.expert_places %ids {experts = 4 : i64, capacity = 1 : i64} : (tensor<8x1x1xi64>) -> (tensor<8x1x1xi64>, tensor<1x8x1xi64>)
  %sent = train.dispatch %x, %slots, %rows : (tensor<8x1x6xf32>, tensor<8x1x1xi64>, tensor<1x8x1xi64>) -> tensor<1x8x1x6xf32>
  %h = train.grouped_product %sent, %rows, %w {taken = 1 : i64} : (tensor<1x8x1x6xf32>, tensor<1x8x1xi64>, tensor<4x6x6xf32>) -> tensor<1x8x1x6xf32>
  %y = train.combine %h, %slots, %rows : (tensor<1x8x1x6xf32>, tensor<8x1x1xi64>, tensor<1x8x1xi64>) -> tensor<8x1x6xf32>
  func.return %y : tensor<8x1x6xf32>
}
