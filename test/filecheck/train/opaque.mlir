// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s -p "train-dropout,distribute{e=2 d=2}" | filecheck %s --check-prefix=DIST
// RUN: distir-opt %s -p "train-dropout,distribute{e=2 d=2},project{rank=3}" | filecheck %s --check-prefix=RANK
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd}" | filecheck %s --check-prefix=TRAIN
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},distribute{e=2 d=2}" | filecheck %s --check-prefix=STEP
// RUN: distir-opt %s -p "simulate{cluster=dgx2}" 2>&1 >/dev/null | filecheck %s --check-prefix=COST

// A module communicates over e by itself, so that its experts and its tokens are split over e
// as it declares; d splits the batch alone.
// CHECK: %y = train.opaque %x, %w, %r {module = "experts", tensors = ["w", "r"], trains, draws, rule = "[b@e, s, 8], [4@e, 8], [8] -> [b@e, s, 8]", flops = "100*b*s", sent = "16*b*s"} : tensor<8x2x8xf32>, tensor<4x8xf32>, tensor<8xf32> -> tensor<8x2x8xf32>

// DIST: func.func @main(%x: tensor<8x2x8xf32, #dist.layout<@mesh, [{d, e}, {}, {}]>> {{.*}}, %w: tensor<4x8xf32, #dist.layout<@mesh, [{e}, {}]>> {{.*}}, %r: tensor<8xf32, #dist.layout<@mesh>>
// DIST: train.opaque {{.*}} -> tensor<8x2x8xf32, #dist.layout<@mesh, [{d, e}, {}, {}]>>

// RANK: %[[D:.*]] = collective.coordinate over [d] {{{.*}}index = 1 : i64}
// RANK: %[[E:.*]] = collective.coordinate over [e] {{{.*}}index = 1 : i64}
// RANK: train.opaque %x, %w, %r counter %{{.*}} at %[[D]], %[[E]] {{{.*}}axes = ["e"], sizes = array<i64: 2>{{.*}}} : tensor<2x2x8xf32>, tensor<2x8xf32>, tensor<8xf32> counter tensor<i64> at tensor<i64>, tensor<i64> -> tensor<2x2x8xf32>

// Its random numbers follow from the step, in the backward too.
// TRAIN: %y = train.opaque %x, %w, %r counter %{{.*}} {{{.*}}draws, rule = {{.*}}seed = 0 : i64, stream = 0 : i64
// TRAIN: train.opaque_grad %{{.*}} through %x, %w, %r counter %{{.*}} {{{.*}}rule = "[b@e, s, 8], [b@e, s, 8], [4@e, 8], [8] -> [b@e, s, 8], [4@e, 8], [8]", flops = "3*100*b*s"{{.*}}wrt = array<i64: 0, 1, 2>, given = array<i64: 0>}

// The gradient of what is whole over e is a sum over it.
// STEP: train.opaque_grad {{.*}} -> tensor<8x2x8xf32, #dist.layout<@mesh, [{d, e}, {}, {}]>>, tensor<4x8xf32, #dist.layout<@mesh, [{e}, {}], partial sum {d}>>, tensor<8xf32, #dist.layout<@mesh, partial sum {d, e}>>

// COST: 1600
func.func @main(
    %x: tensor<8x2x8xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<4x8xf32> {dist.role = "parameter", dist.name = "experts.w"},
    %r: tensor<8xf32> {dist.role = "parameter", dist.name = "experts.r"}
) -> tensor<8x2x8xf32> {
  %y = train.opaque %x, %w, %r {module = "experts", tensors = ["w", "r"], trains, draws, rule = "[b@e, s, 8], [4@e, 8], [8] -> [b@e, s, 8]", flops = "100*b*s", sent = "16*b*s"} : tensor<8x2x8xf32>, tensor<4x8xf32>, tensor<8xf32> -> tensor<8x2x8xf32>
  func.return %y : tensor<8x2x8xf32>
}
