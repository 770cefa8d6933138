// RUN: distir-opt %s -p "differentiate{loss=mse},zero{stage=1}" | filecheck %s
// RUN: distir-opt %s -p "differentiate{loss=mse},zero{stage=3 only=w}" | filecheck %s --check-prefix=ONLY
// RUN: distir-opt %s -p "differentiate{loss=mse},zero{stage=2 only=\"b*\"}" | filecheck %s --check-prefix=TWO
// RUN: not distir-opt %s -p "differentiate{loss=mse},zero{stage=4}" 2>&1 | filecheck %s --check-prefix=STAGE
// RUN: not distir-opt %s -p "differentiate{loss=mse},zero{stage=1 axis=q}" 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: distir-opt %s -p "differentiate{loss=mse clip=1.0},request-sharding{shard=\"w2:1=d\"},zero{stage=3 axis=p}" | filecheck %s --check-prefix=FIVE
// RUN: not distir-opt %s -p "differentiate{loss=mse optimizer=none},zero{stage=1 axis=p}" 2>&1 | filecheck %s --check-prefix=UNEVEN
// RUN: not distir-opt %s -p "differentiate{loss=mse optimizer=sgd},zero{stage=1}" 2>&1 | filecheck %s --check-prefix=STATE
// RUN: not distir-opt %s -p "zero{stage=1}" 2>&1 | filecheck %s --check-prefix=STATE
// RUN: not distir-opt %s -p "differentiate{loss=mse},zero{only=v}" 2>&1 | filecheck %s --check-prefix=NAME

// States are split along the first dimension that the axis divides; the step counter stays
// whole. Where it divides none, they are flat, with zeros behind, and so is their update.
// CHECK:      dist.notes = ["zero: b.exp_avg, b.exp_avg_sq: stored flat, with zeros behind, as axis 'd' of size 2 divides none of the dimensions"]
// CHECK:      %w: tensor<3x4xf32> {dist.role = "parameter", dist.name = "w"}
// CHECK-SAME: %b: tensor<3xf32> {dist.role = "parameter", dist.name = "b"}
// CHECK-SAME: dist.name = "optimizer.step", dist.counter}
// CHECK-SAME: dist.name = "w.exp_avg", dist.of = "w", dist.layout = #dist.layout<@mesh, [{}, {d}]>}
// CHECK-SAME: %b_exp_avg: tensor<4xf32> {dist.role = "state", dist.name = "b.exp_avg", dist.of = "b", dist.layout = #dist.layout<@mesh, [{d}]>, dist.flattened = {shape = array<i64: 3>, length = 4 : i64}}
// CHECK-SAME: tensor<3xf32> {dist.name = "b", dist.updates = "b"}
// CHECK-SAME: tensor<4xf32> {dist.name = "b.exp_avg", dist.updates = "b.exp_avg", dist.flattened = {shape = array<i64: 3>, length = 4 : i64}}
// CHECK-NOT:  dist.reshard_early
// CHECK:      [[G:%.*]] = train.flatten %{{.*}} : (tensor<3xf32>) -> tensor<4xf32>
// CHECK:      [[B:%.*]] = train.flatten %b : (tensor<3xf32>) -> tensor<4xf32>
// CHECK-NEXT: [[N:%.*]], %{{.*}}, %{{.*}} = train.adamw [[B]], [[G]], %b_exp_avg, %b_exp_avg_sq, %optimizer_step
// CHECK:      train.unflatten [[N]] : (tensor<4xf32>) -> tensor<3xf32>

// The names of `only` are whole names of parameters.
// ONLY-NOT:  dist.notes
// ONLY:      %w: tensor<3x4xf32> {dist.role = "parameter", dist.name = "w", dist.layout = #dist.layout<@mesh, [{}, {d}]>}
// ONLY-SAME: dist.name = "w2"}
// ONLY-SAME: dist.name = "w.exp_avg", dist.of = "w", dist.layout = #dist.layout<@mesh, [{}, {d}]>}
// ONLY-SAME: dist.name = "w2.exp_avg", dist.of = "w2"}

// With stage 2 the updates of the chosen ones ask for their gradients early.
// TWO:     dist.name = "b2.exp_avg", dist.of = "b2", dist.layout = #dist.layout<@mesh, [{d}]>}
// TWO:      train.adamw %w, {{.*}}%optimizer_step {learning_rate
// TWO:      train.adamw %b_{{.*}}dist.reshard_early
// TWO-NEXT: train.adamw %w2, {{.*}}%optimizer_step {learning_rate
// TWO-NEXT: train.adamw %b2, {{.*}}dist.reshard_early

// With stage 3 parameters are flat too, and take their shape for what uses them; of a split
// over other axes, here by 5, blocks are flattened. Gradients are as they are clipped, and are
// scattered before their squares are added up.
// FIVE:     %w: tensor<15xf32> {dist.role = "parameter", dist.name = "w", dist.layout = #dist.layout<@mesh, [{p}]>, dist.flattened = {shape = array<i64: 3, 4>, length = 15 : i64}}
// FIVE-SAME: %w2_exp_avg: tensor<15x2xf32> {dist.role = "state", dist.name = "w2.exp_avg", dist.of = "w2", dist.layout = #dist.layout<@mesh, [{p}, {d}]>, dist.flattened = {shape = array<i64: 4, 6>, length = 15 : i64, blocks = [array<i64: 1, 2, 3>]}}
// FIVE:     train.unflatten %w : (tensor<15xf32>) -> tensor<3x4xf32>
// FIVE:     train.unflatten %w2 {blocks = [array<i64: 1, 2, 3>]} : (tensor<15x2xf32>) -> tensor<4x6xf32>
// FIVE:     [[G:%.*]] = train.flatten %{{.*}} {blocks = [array<i64: 1, 2, 3>]} : (tensor<4x6xf32>) -> tensor<15x2xf32>
// FIVE-NEXT: [[P:%.*]] = dist.constrain [[G]] to <@mesh, [{p}, {}]> over [p] {dist.reduce_late, dist.reshard_early}
// FIVE:     train.square_sum [[P]]
// FIVE:     onnx.Mul([[P]], %{{.*}}) : (tensor<15x2xf32>, tensor<f32>) -> tensor<15x2xf32>
// FIVE:     train.adamw %w2, {{.*}}dist.reshard_early
// FIVE-NOT: train.unflatten

// STAGE: error: zero: there is no stage 4; choose 1, 2 or 3
// AXIS: error: no mesh has an axis 'q' (meshes of this module: @mesh {'d': 2, 'p': 5})
// UNEVEN: error: zero: axis 'p' of size 5 divides no dimension of w, b, w2, b2; choose another degree of data parallelism
// STATE: error: zero: the program updates no state, which is what stage 1 splits; differentiate it with an optimizer that has it first
// NAME: error: zero: no parameter that is updated is called 'v'; the program has w, b, w2, b2

device.mesh @mesh on @box <d = 2, p = 5> [0 to 10]
func.func @main(%x: tensor<8x3xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<3x4xf32> {dist.role = "parameter", dist.name = "w"}, %b: tensor<3xf32> {dist.role = "parameter", dist.name = "b"}, %w2: tensor<4x6xf32> {dist.role = "parameter", dist.name = "w2"}, %b2: tensor<6xf32> {dist.role = "parameter", dist.name = "b2"}) -> tensor<8x6xf32> {
  %h = onnx.Add(%x, %b) : (tensor<8x3xf32>, tensor<3xf32>) -> tensor<8x3xf32>
  %a = onnx.MatMul(%h, %w) : (tensor<8x3xf32>, tensor<3x4xf32>) -> tensor<8x4xf32>
  %p = onnx.MatMul(%a, %w2) : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %y = onnx.Add(%p, %b2) : (tensor<8x6xf32>, tensor<6xf32>) -> tensor<8x6xf32>
  func.return %y : tensor<8x6xf32>
}
