// RUN: distir-opt %s -p add-step-settings,verify-distribution | distir-opt | filecheck %s
// RUN: distir-opt %s -p 'add-step-settings{settings=learning_rate}' | filecheck %s --check-prefix ONE
// RUN: distir-opt %s -p add-step-settings,add-step-settings | filecheck %s
// RUN: not distir-opt %s -p 'add-step-settings{settings=beta1}' 2>&1 | filecheck %s --check-prefix OTHER

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1000 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @a on @c <d = 1> [0 to 1]
device.mesh @b on @c <d = 1> [1 to 2]

// One argument for each mesh and each value: %u and %v share theirs.
// CHECK:      func.func @main(
// CHECK-SAME: %learning_rate: tensor<f64, #dist.layout<@a>> {dist.role = "setting", dist.name = "learning_rate", dist.setting = "learning_rate", dist.default = 1.000000e-01 : f64}
// CHECK-SAME: %weight_decay: tensor<f64, #dist.layout<@a>> {{[^}]*}}dist.default = 0.000000e+00
// CHECK-SAME: %learning_rate_1: tensor<f64, #dist.layout<@b>> {dist.role = "setting", dist.name = "learning_rate_1", dist.setting = "learning_rate", dist.default = 1.000000e-01
// CHECK-SAME: %weight_decay_1: tensor<f64, #dist.layout<@b>>
// CHECK-SAME: %learning_rate_2: tensor<f64, #dist.layout<@b>> {{[^}]*}}dist.default = 2.000000e-01
// CHECK-NOT:  dist.setting
// CHECK:      train.sgd %u, %gu momentum %bu given %learning_rate, %weight_decay {{.*}}given = ["learning_rate", "weight_decay"]
// CHECK-NEXT: train.sgd %v, %gv given %learning_rate, %weight_decay {
// CHECK-NEXT: train.adamw %w, %gw, %m, %s, %step, %learning_rate_1, %weight_decay_1 {
// CHECK-NEXT: train.sgd %x, %gx given %learning_rate_2, %weight_decay_1 {

// ONE:      train.sgd %u, %gu momentum %bu given %learning_rate {
// ONE:      train.adamw %w, %gw, %m, %s, %step, %learning_rate_1 {

// OTHER: add-step-settings: there is no setting of a step 'beta1'; choose one of learning_rate, weight_decay

!a = tensor<4xf32, #dist.layout<@a>>
!b = tensor<4xf32, #dist.layout<@b>>
!n = tensor<i64, #dist.layout<@b>>
func.func @main(%u: !a, %gu: !a, %bu: !a, %v: !a, %gv: !a, %w: !b, %gw: !b, %m: !b, %s: !b, %step: !n, %x: !b, %gx: !b) -> (!a, !a, !b, !b) {
  %0, %1 = train.sgd %u, %gu momentum %bu {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, momentum = 0.9 : f64} : (!a, !a, !a) -> (!a, !a)
  %2 = train.sgd %v, %gv {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (!a, !a) -> !a
  %3, %4, %5 = train.adamw %w, %gw, %m, %s, %step {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64, beta1 = 0.9 : f64, beta2 = 0.99 : f64, epsilon = 0.0 : f64} : (!b, !b, !b, !b, !n) -> (!b, !b, !b)
  %6 = train.sgd %x, %gx {learning_rate = 0.2 : f64, weight_decay = 0.0 : f64} : (!b, !b) -> !b
  func.return %0, %2, %3, %6 : !a, !a, !b, !b
}
