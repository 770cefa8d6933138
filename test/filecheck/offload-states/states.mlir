// RUN: distir-opt %s -p offload-states | filecheck %s
// RUN: distir-opt %s -p "offload-states,project{rank=1}" | filecheck %s --check-prefix=RANK
// RUN: distir-opt %s -p "offload-states,project{rank=1}" -t torch | filecheck %s --check-prefix=TORCH
// RUN: distir-opt %s -p "offload-states,verify-distribution,simulate" 2>&1 | filecheck %s --check-prefix=SIMULATE
// RUN: not distir-opt %s -p offload-states,offload-states 2>&1 | filecheck %s --check-prefix=AGAIN

// Arguments and results keep their layouts. The counter belongs to no parameter: it stays.
// CHECK:      func.func @main(
// CHECK-SAME:   %m: tensor<8x4x!dist.host<f32>, #dist.layout<@mesh, [{d}, {}]>> {dist.role = "state", dist.name = "w.exp_avg", dist.of = "w"}
// CHECK-SAME:   %step: tensor<i64, #dist.layout<@mesh>>
// CHECK:        %m_1 = train.fetch %m : (tensor<8x4x!dist.host<f32>, #dist.layout<@mesh, [{d}, {}]>>) -> tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-NEXT:   %v_1 = train.fetch %v
// CHECK-NEXT:   %w_new, %m_new, %v_new = train.adamw %w, %g, %m_1, %v_1, %step
// CHECK-NEXT:   %m_new_1 = train.offload %m_new :
// CHECK-NEXT:   %v_new_1 = train.offload %v_new :
// CHECK-NEXT:   func.return %w_new, %m_new_1, %v_new_1

// RANK:  train.fetch %m : (tensor<4x4x!dist.host<f32>>) -> tensor<4x4xf32>

// Both states are loaded and stored by one call each, into the memory that they have.
// TORCH:      m, v = offload.load((self.w_exp_avg, self.w_exp_avg_sq,))
// TORCH-NEXT: w_new, m_new, v_new = optimizers.adamw(
// TORCH-NEXT:   (self.w,), (g,), (m,), (v,), self.optimizer.step
// TORCH:        in_place=True
// TORCH:      offload.store((m_new, v_new,), (self.w_exp_avg, self.w_exp_avg_sq,))

// A device has 2 x 64 B of states in its host; the four copies of 64 B take 256 ns.
// SIMULATE: step time 2.56e-07 s
// SIMULATE: at most 128 B of a device in its host's memory
// SIMULATE: does not fit into the memory of the hosts of devices [0, 1]

// AGAIN: error: offload-states: the program has no optimizer that keeps states of parameters on its devices; differentiate it with adam, adamw, or sgd with momentum first

device.cluster @pair {
  device.kind @cpu on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 0.0 : f64, host_bandwidth = 1.0e+9 : f64, host_memory = 127 : i64}
  device.link @wire spans 2 {bandwidth = 1.0e+30 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <d = 2> [0, 1]

#split = #dist.layout<@mesh, [{d}, {}]>
#whole = #dist.layout<@mesh>

func.func @main(%w: tensor<8x4xf32, #split> {dist.role = "parameter", dist.name = "w"}, %g: tensor<8x4xf32, #split> {dist.role = "input", dist.name = "g"}, %m: tensor<8x4xf32, #split> {dist.role = "state", dist.name = "w.exp_avg", dist.of = "w"}, %v: tensor<8x4xf32, #split> {dist.role = "state", dist.name = "w.exp_avg_sq", dist.of = "w"}, %step: tensor<i64, #whole> {dist.role = "state", dist.name = "optimizer.step", dist.counter}) -> (tensor<8x4xf32, #split> {dist.name = "w", dist.updates = "w"}, tensor<8x4xf32, #split> {dist.name = "w.exp_avg", dist.updates = "w.exp_avg"}, tensor<8x4xf32, #split> {dist.name = "w.exp_avg_sq", dist.updates = "w.exp_avg_sq"}) {
  %w_new, %m_new, %v_new = train.adamw %w, %g, %m, %v, %step {learning_rate = 1.0e-3 : f64, weight_decay = 1.0e-2 : f64, beta1 = 0.9 : f64, beta2 = 0.999 : f64, epsilon = 1.0e-8 : f64} : (tensor<8x4xf32, #split>, tensor<8x4xf32, #split>, tensor<8x4xf32, #split>, tensor<8x4xf32, #split>, tensor<i64, #whole>) -> (tensor<8x4xf32, #split>, tensor<8x4xf32, #split>, tensor<8x4xf32, #split>)
  func.return %w_new, %m_new, %v_new : tensor<8x4xf32, #split>, tensor<8x4xf32, #split>, tensor<8x4xf32, #split>
}
