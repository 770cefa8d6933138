// RUN: not distir-opt %s -p search-sharding 2>&1 | filecheck %s --check-prefix=AXES
// RUN: not distir-opt %s -p 'search-sharding{axes="t"}' 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s -p 'search-sharding{axes="t=8"}' 2>&1 | filecheck %s --check-prefix=DEVICES
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" solver=glpk}' 2>&1 | filecheck %s --check-prefix=SOLVER
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" level=O1}' 2>&1 | filecheck %s --check-prefix=LEVEL
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" whole=w9}' 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" memory=1000.0}' 2>&1 | filecheck %s --check-prefix=MEMORY
// RUN: not distir-opt %s -p 'search-sharding{axes="t=2" gap=-1}' 2>&1 | filecheck %s --check-prefix=GAP

// AXES: error: search-sharding: the module has no device.mesh; say with `axes` how many devices there are, for example axes="d=2","t=4"
// AXIS: error: search-sharding: cannot read the axis 't'; write NAME=SIZE
// DEVICES: error: search-sharding: t=8 needs 8 devices, but cluster @box has 4
// SOLVER: error: search-sharding: there is no solver 'glpk'; choose one of auto, highs, cbc
// LEVEL: error: search-sharding: there is no level 'O1'; choose one of O2, O3
// NAME: error: no argument is called 'w9'
// MEMORY: error: search-sharding: no layouts fit into 1000 bytes per device; {{.*}} bytes would do{{.*}}. Most is taken by
// GAP: error: search-sharding: the gap is -1; give a number from 0 on

device.cluster @box {
  device.kind @gpu on [0 to 4] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 4 {bandwidth = 1.5e11 : f64, latency = 1.0e-6 : f64}
}
func.func @main(%x: tensor<8x64xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w1"}) -> tensor<8x64xf32> {
  %h = onnx.MatMul(%x, %w1) : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  func.return %h : tensor<8x64xf32>
}
