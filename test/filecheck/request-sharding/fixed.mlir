// RUN: distir-opt %s -p 'distribute{t=2}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{d=2}' | filecheck %s --check-prefix=NONE
// RUN: distir-opt %s -p 'search-sharding{axes="d=2","t=2"}' | filecheck %s --check-prefix=SEARCH
// RUN: distir-opt %s -p 'auto-parallel{jobs=1}' | filecheck %s --check-prefix=AUTO
// RUN: distir-opt %s -p 'distribute{t=2 shard="w1:0=t"}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{d=2 shard="w1:1=t"}' | filecheck %s --check-prefix=NONE
// RUN: distir-opt %s -p 'distribute{d=2 t=2 shard="w2:1=d"}' | filecheck %s --check-prefix=BOTH
// RUN: not distir-opt %s -p 'distribute{t=2 shard="w1:1=t"}' 2>&1 | filecheck %s --check-prefix=CONFLICT
// RUN: not distir-opt %s -p 'distribute{t=2 shard="w2:1=t"}' 2>&1 | filecheck %s --check-prefix=KEPT
// RUN: not distir-opt %s -p 'distribute{t=2 whole=w1}' 2>&1 | filecheck %s --check-prefix=WHOLE
// RUN: not distir-opt %s -p 'distribute{d=2 whole=x}' 2>&1 | filecheck %s --check-prefix=BATCH
// RUN: not distir-opt %s -p 'distribute{t=3}' 2>&1 | filecheck %s --check-prefix=UNEVEN

// Without the requests, t would split the columns of w1 and the rows of w2.
// CHECK: %w1: tensor<64x128xf32, #dist.layout<@mesh, [{t}, {}]>> {dist.role = "parameter"}
// CHECK-SAME: %w2: tensor<128x64xf32, #dist.layout<@mesh>> {dist.role = "parameter"}

// An axis of size 1 is none.
// NONE: %w1: tensor<64x128xf32, #dist.layout<@mesh>>

// SEARCH: %w1: tensor<64x128xf32, #dist.layout<@mesh, [{t}, {}]>>
// SEARCH-SAME: %w2: tensor<128x64xf32, #dist.layout<@mesh, [{}, {d}]>>

// AUTO: func.func @main
// AUTO-NOT: tensor<128x64xf32, #dist.layout<@mesh, [{{.*}}t{{.*}}]>> {dist.role = "parameter"}

// What t must not do, d may.
// BOTH: %w2: tensor<128x64xf32, #dist.layout<@mesh, [{}, {d}]>>

// CONFLICT: error: argument 'w1': the split 'w1:1=t' asks that axis 't' splits dimension 1, but script.py, line 4 that it splits dimension 0; ask for one of these
// KEPT:     error: argument 'w2': the split 'w2:1=t' asks that axis 't' splits dimension 1, but `dist.fixed` that it splits nothing of it; ask for one of these
// WHOLE:    error: argument 'w1': keeping 'w1' whole asks that axis 't' splits nothing of it, but script.py, line 4 that it splits dimension 0
// BATCH:    error: data-parallel: input 'x' holds the batch, which axis 'd' splits, but keeping 'x' whole keeps it whole over 'd'
// UNEVEN:   error: argument 'w1', as script.py, line 4 asks: {{.*}}64

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<8x64xf32> {dist.role = "input"},
                %w1: tensor<64x128xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{t}, {}]>, dist.fixed = ["t"], dist.fixed_by = {t = "script.py, line 4"}},
                %w2: tensor<128x64xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh>, dist.fixed = ["t"]}) -> tensor<8x64xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x64xf32>, tensor<64x128xf32>) -> tensor<8x128xf32>
  %a = onnx.Relu(%h) : (tensor<8x128xf32>) -> tensor<8x128xf32>
  %y = onnx.MatMul(%a, %w2) : (tensor<8x128xf32>, tensor<128x64xf32>) -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}
