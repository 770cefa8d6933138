// RUN: distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 stage-meshes=\"d=2,t=2\",\"t=2\"})" | filecheck %s
// RUN: distir distribute %s --cluster cpu --devices 6 -p 2 -k 2 --stage-meshes "d=2,t=2;t=2" -o %t && filecheck --input-file %t %s --check-prefix=COMMAND
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 stage-meshes=\"d=2,t=2\",\"t=4\"})" 2>&1 | filecheck %s --check-prefix=LARGE
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=3 k=2 stage-meshes=\"d=2\",\"t=4\"})" 2>&1 | filecheck %s --check-prefix=COUNT
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 d=2 stage-meshes=\"d=2\",\"t=4\"})" 2>&1 | filecheck %s --check-prefix=TWICE
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 stage-meshes=\"d=2\",\"t\"})" 2>&1 | filecheck %s --check-prefix=TEXT
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 stage-meshes=\"d=2\",\"t=2,t=2\"})" 2>&1 | filecheck %s --check-prefix=AGAIN
// RUN: not distir-opt %s --pass-pipeline="builtin.module(distribute{p=2 k=2 stage-meshes=\"d=2\",\"q=2\"})" 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s --pass-pipeline="builtin.module(add-mesh{axes=\"k=2\",\"d=2\"},data-parallel{axis=k},data-parallel{axis=d},propagate-sharding,partition{lower=false},pipeline{p=2 stage-meshes=\"d=2\",\"d=3\"})" 2>&1 | filecheck %s --check-prefix=DIVISOR
// RUN: distir-opt %s -p "distribute{p=2 k=2 d=2 stage-meshes=search}" | filecheck %s --check-prefix=SEARCH
// RUN: not distir-opt %s -p "distribute{d=2 stage-meshes=search}" 2>&1 | filecheck %s --check-prefix=ALONE
// RUN: not distir-opt %s -p "search-stages{p=2 stage-meshes=search}" 2>&1 | filecheck %s --check-prefix=MARKS
// RUN: not distir-opt %s --pass-pipeline="builtin.module(search-sharding{axes=\"d=2\" p=2 k=2 stage-meshes=search})" 2>&1 | filecheck %s --check-prefix=LAYOUTS

// The first stage on a mesh of 2 x 2, the second on 2 other devices.

// CHECK: device.mesh @stage0 on @box <d = 2, t = 2> [0 to 4]
// CHECK: device.mesh @stage1 on @box <t = 2> [4 to 6]
// CHECK: dist.send %a {dist.asynchronous} : tensor<4x64xf32, #dist.layout<@stage0, [{d}, {t}]>> -> tensor<4x64xf32, #dist.layout<@stage1, [{}, {t}]>>

// COMMAND: device.mesh @stage0 on @cpu <d = 2, t = 2> [0 to 4]
// COMMAND: device.mesh @stage1 on @cpu <t = 2> [4 to 6]

// SEARCH: stage meshes: d={{[12]}}; d={{[12]}}; simulated, a step takes
// SEARCH: device.mesh @stage0 on @box

// ALONE: error: distribute: stage_meshes is of a pipeline, but p and k are 1; choose a larger p
// MARKS: error: search-stages: where stages have meshes of their own, `pipeline` searches them itself; run pipeline{stages=search} or pipeline{stage-meshes=search}
// LAYOUTS: error: search-sharding: the layouts of all stages are found on meshes of one shape; leave out stage_meshes, or use `distribute`, which takes it

// LARGE: error: distribute: stages on d=2,t=2 and t=4 need 8 devices, but cluster @box has 6; choose smaller meshes or a larger cluster
// COUNT: error: pipeline: stage_meshes has 2 meshes, but the pipeline has 3 ranks; give one for each rank (-p)
// TWICE: error: distribute: stage_meshes says how large the axes of each stage are, and so does d=2; leave out one of them
// TEXT: error: pipeline: stage_meshes: cannot read the axis 't'; write NAME=SIZE, for example d=2
// AGAIN: error: pipeline: stage_meshes has a mesh 't=2,t=2'; give each of its axes one size, of 1 or more
// DIVISOR: error: pipeline: stage_meshes gives rank 1 d=3, but the program is split over {'d': 2}; choose a divisor of that
// AXIS: error: distribute: stage_meshes gives a stage an axis 'q'; the axes are r, d, e, c, t

device.cluster @box {
  device.kind @gpu on [0 to 6] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 6 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}

func.func @main(%x: tensor<8x64xf32> {dist.role = "input", dist.name = "x"}, %w1: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w1"}, %w2: tensor<64x64xf32> {dist.role = "parameter", dist.name = "w2"}) -> tensor<8x64xf32> {
  %a = onnx.MatMul(%x, %w1) {scope = "l1"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  %y = onnx.MatMul(%a, %w2) {scope = "l2"} : (tensor<8x64xf32>, tensor<64x64xf32>) -> tensor<8x64xf32>
  func.return %y : tensor<8x64xf32>
}
