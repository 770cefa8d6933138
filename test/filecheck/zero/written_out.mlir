// RUN: distir-opt %s -p "distribute{d=4 zero=3 buckets=false}" | filecheck %s
// RUN: distir-opt %s -p 'distribute{d=4 t=2 zero=1 buckets=false shard="w.a:1=t","w.c:0=t"}' | filecheck %s --check-prefix BOTH

// An optimizer that is written out, as optax's are in a step of JAX, makes two states of a
// gradient: it is scattered once for both, and nothing is reduced as a whole.

// CHECK-LABEL: func.func @main
// CHECK-NOT:   collective.all_reduce
// CHECK:       %[[C:.*]] = collective.reduce_scatter %dc over [d]
// CHECK:       %[[A:.*]] = collective.reduce_scatter %da over [d]
// CHECK:       onnx.Mul(%a1, %[[A]])
// CHECK:       onnx.Mul(%[[A]], %[[A]])
// CHECK:       onnx.Mul(%a1, %[[C]])
// CHECK:       onnx.Mul(%[[C]], %[[C]])
// CHECK-NOT:   collective.reduce_scatter

// Where d splits the parts of t, the gradient is split in the same order, so that the
// moments stay in place.
// BOTH:        %mu_c: tensor<64x16xf32, #dist.layout<@mesh, [{t, d}, {}]>>
// BOTH-NOT:    collective.all_gather
// BOTH:        collective.reduce_scatter %dc over [d] : tensor<64x16xf32, #dist.layout<@mesh, [{t}, {}], partial sum {d}>> -> tensor<64x16xf32, #dist.layout<@mesh, [{t, d}, {}]>>
// BOTH:        collective.reduce_scatter %da over [d]
// BOTH:        collective.all_gather %w_a_1 over [d]
// BOTH:        collective.all_gather %w_c_1 over [d]
// BOTH-NOT:    collective
// BOTH:        func.return
func.func @main(
    %w_a: tensor<16x64xf32> {dist.role = "parameter", dist.name = "w.a"},
    %mu_a: tensor<16x64xf32> {dist.role = "state", dist.name = "mu.a", dist.of = "w.a"},
    %nu_a: tensor<16x64xf32> {dist.role = "state", dist.name = "nu.a", dist.of = "w.a"},
    %w_c: tensor<64x16xf32> {dist.role = "parameter", dist.name = "w.c"},
    %mu_c: tensor<64x16xf32> {dist.role = "state", dist.name = "mu.c", dist.of = "w.c"},
    %nu_c: tensor<64x16xf32> {dist.role = "state", dist.name = "nu.c", dist.of = "w.c"},
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}
) -> (tensor<16x64xf32> {dist.updates = "w.a"}, tensor<16x64xf32> {dist.updates = "mu.a"}, tensor<16x64xf32> {dist.updates = "nu.a"}, tensor<64x16xf32> {dist.updates = "w.c"}, tensor<64x16xf32> {dist.updates = "mu.c"}, tensor<64x16xf32> {dist.updates = "nu.c"}) {
  %b1 = onnx.Constant() {value = dense<0.9> : tensor<f32>} : () -> tensor<f32>
  %a1 = onnx.Constant() {value = dense<0.1> : tensor<f32>} : () -> tensor<f32>
  %b2 = onnx.Constant() {value = dense<0.999> : tensor<f32>} : () -> tensor<f32>
  %a2 = onnx.Constant() {value = dense<0.001> : tensor<f32>} : () -> tensor<f32>
  %h = onnx.MatMul(%x, %w_a) : (tensor<8x16xf32>, tensor<16x64xf32>) -> tensor<8x64xf32>
  %y = onnx.MatMul(%h, %w_c) : (tensor<8x64xf32>, tensor<64x16xf32>) -> tensor<8x16xf32>
  %dc = onnx.Einsum(%h, %y) {equation = "bh,by->hy"} : (tensor<8x64xf32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  %dh = onnx.Einsum(%y, %w_c) {equation = "by,hy->bh"} : (tensor<8x16xf32>, tensor<64x16xf32>) -> tensor<8x64xf32>
  %da = onnx.Einsum(%x, %dh) {equation = "bx,bh->xh"} : (tensor<8x16xf32>, tensor<8x64xf32>) -> tensor<16x64xf32>
  %m_a = onnx.Mul(%b1, %mu_a) : (tensor<f32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %h_a = onnx.Mul(%a1, %da) : (tensor<f32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %mu_a_1 = onnx.Add(%m_a, %h_a) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %v_a = onnx.Mul(%b2, %nu_a) : (tensor<f32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %s_a = onnx.Mul(%da, %da) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %k_a = onnx.Mul(%a2, %s_a) : (tensor<f32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %nu_a_1 = onnx.Add(%v_a, %k_a) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %r_a = onnx.Sqrt(%nu_a_1) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %q_a = onnx.Div(%mu_a_1, %r_a) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %d_a = onnx.Mul(%a2, %q_a) : (tensor<f32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %w_a_1 = onnx.Sub(%w_a, %d_a) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
  %m_c = onnx.Mul(%b1, %mu_c) : (tensor<f32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %h_c = onnx.Mul(%a1, %dc) : (tensor<f32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %mu_c_1 = onnx.Add(%m_c, %h_c) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %v_c = onnx.Mul(%b2, %nu_c) : (tensor<f32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %s_c = onnx.Mul(%dc, %dc) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %k_c = onnx.Mul(%a2, %s_c) : (tensor<f32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %nu_c_1 = onnx.Add(%v_c, %k_c) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %r_c = onnx.Sqrt(%nu_c_1) : (tensor<64x16xf32>) -> tensor<64x16xf32>
  %q_c = onnx.Div(%mu_c_1, %r_c) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %d_c = onnx.Mul(%a2, %q_c) : (tensor<f32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  %w_c_1 = onnx.Sub(%w_c, %d_c) : (tensor<64x16xf32>, tensor<64x16xf32>) -> tensor<64x16xf32>
  func.return %w_a_1, %mu_a_1, %nu_a_1, %w_c_1, %mu_c_1, %nu_c_1 : tensor<16x64xf32>, tensor<16x64xf32>, tensor<16x64xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>
}
