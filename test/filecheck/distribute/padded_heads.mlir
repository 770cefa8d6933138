// RUN: distir-opt %s -p "distribute{t=4 pad=heads}" | filecheck %s
// RUN: distir-opt %s -p "distribute{t=4}" | filecheck %s --check-prefix=WHOLE
// RUN: distir-opt %s -p 'distribute{t=4 pad=heads shard="wq*:1=t:2"}' | filecheck %s --check-prefix=ASKED
// RUN: not distir-opt %s -p "distribute{t=4 pad=head}" 2>&1 | filecheck %s --check-prefix=UNKNOWN

// Six query heads of four features share two key heads: three each, over four devices. With a
// fourth of zeros in each group, each device has a query head of both. `dist.padded_runs` says
// where the zeros are: 12 rows of the model and 4 of zeros, twice. What attention gives for
// heads of zeros, a mean of values, is masked.
// CHECK:      attention of 6 query heads and 2 key heads is padded with heads of zeros to 8 query heads and 2 key heads, which the 4 devices of axis 't' share
// CHECK:      %wq: tensor<24x32xf32, #dist.layout<@mesh, [{}, {t:4}]>> {{.*}}dist.padded = array<i64: 24, 24>, dist.padded_runs = array<i64: 1, 12, 4, 12, 4>
// CHECK-SAME: %wo: tensor<32x24xf32, #dist.layout<@mesh, [{t:4}, {}]>> {{.*}}dist.padded = array<i64: 24, 24>, dist.padded_runs = array<i64: 0, 12, 4, 12, 4>
// CHECK:      onnx.Attention({{.*}}q_num_heads = 8 : i64, kv_num_heads = 2 : i64
// CHECK:      onnx.Mul
// CHECK:      onnx.MatMul({{.*}}partial sum {t}
// CHECK-NEXT: collective.all_reduce
// CHECK-NEXT: func.return

// WHOLE:      attention of 6 query heads and 2 key heads cannot be shared by the 4 devices of axis 't'; with heads of zeros, 8 query heads and 2 key heads, it can be: --pad heads
// WHOLE:      %wq: tensor<24x24xf32

// A user's request goes before that for the zeros, also where it names several arguments.
// ASKED:      %wq: tensor<24x32xf32, #dist.layout<@mesh, [{}, {t:2}]>>
// ASKED-SAME: %wo: tensor<32x24xf32, #dist.layout<@mesh, [{t:4}, {}]>>

// UNKNOWN: error: distribute: pad: there is no thing to pad 'head'

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<2x8x24xf32> {dist.role = "input", dist.name = "x"}, %wq: tensor<24x24xf32> {dist.role = "parameter", dist.name = "wq"}, %wk: tensor<24x8xf32> {dist.role = "parameter", dist.name = "wk"}, %wo: tensor<24x24xf32> {dist.role = "parameter", dist.name = "wo"}) -> tensor<2x8x24xf32> {
  %q = onnx.MatMul(%x, %wq) : (tensor<2x8x24xf32>, tensor<24x24xf32>) -> tensor<2x8x24xf32>
  %k = onnx.MatMul(%x, %wk) : (tensor<2x8x24xf32>, tensor<24x8xf32>) -> tensor<2x8x8xf32>
  %a = onnx.Attention(%q, %k, %k) {q_num_heads = 6 : i64, kv_num_heads = 2 : i64} : (tensor<2x8x24xf32>, tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x24xf32>
  %y = onnx.MatMul(%a, %wo) : (tensor<2x8x24xf32>, tensor<24x24xf32>) -> tensor<2x8x24xf32>
  func.return %y : tensor<2x8x24xf32>
}
