// RUN: distir-opt %s -p "distribute{t=2 shard=\"w:1=t\",\"table:0=t\"}" | filecheck %s
// RUN: distir-opt %s -p "differentiate,distribute{t=2}" | filecheck %s --check-prefix=TRAIN
// RUN: not distir-opt %s -p "distribute{t=2 shard=\"s:0=t\"}" 2>&1 | filecheck %s --check-prefix=WHOLE

// Five words over two devices are six, of which one is zeros. Indices may count from the end of
// the five; what is returned are five logits.
// CHECK:      dist.notes = ["w: 5 is padded with zeros to 6, a multiple of the 2 devices of axis 't'", "table: 5 is padded
// CHECK:      func.func @main(%ids: {{.*}}, %table: tensor<6x8xf32, #dist.layout<@mesh, [{t}, {}]>> {dist.role = "parameter", dist.name = "table", dist.padded = array<i64: 5, 8>}, %w: tensor<8x6xf32, #dist.layout<@mesh, [{}, {t}]>> {dist.role = "parameter", dist.name = "w", dist.padded = array<i64: 8, 5>}, %s:
// CHECK:      onnx.Mod(%ids, %{{.*}}) {dist.entries = 5 : i64}
// CHECK:      onnx.Slice
// CHECK-NEXT: func.return %{{.*}} : tensor<4x5xf32, #dist.layout<@mesh>>

// In a training step that needs not be asked for. Logits of no word are minus infinity.
// TRAIN:      dist.notes = ["w, table: 5 is padded with zeros to 6, a multiple of the 2 devices of axis 't'"]
// TRAIN:      onnx.Less
// TRAIN:      [[MASK:%.*]] = onnx.Where
// TRAIN:      [[OWN:%.*]] = collective.slice [[MASK]] over [t]
// TRAIN:      [[LOGITS:%.*]] = onnx.Add(%{{.*}}, [[OWN]])
// TRAIN:      train.logit_maximum [[LOGITS]]
// TRAIN:      train.cross_entropy_sum {{.*}}classes = 5 : i64

// WHOLE: error: argument 's', as the split 's:0=t' asks: dimension 0 of size 5 cannot be split evenly over axis 't' of size 2

device.cluster @box {
  device.kind @gpu on [0 to 2] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 2 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%ids: tensor<4xi64> {dist.role = "input", dist.name = "ids"}, %table: tensor<5x8xf32> {dist.role = "parameter", dist.name = "table"}, %w: tensor<8x5xf32> {dist.role = "parameter", dist.name = "w"}, %s: tensor<5xf32> {dist.role = "parameter", dist.name = "s", dist.frozen}) -> tensor<4x5xf32> {
  %x = onnx.Gather(%table, %ids) : (tensor<5x8xf32>, tensor<4xi64>) -> tensor<4x8xf32>
  %p = onnx.Softmax(%s) {axis = 0 : i64} : (tensor<5xf32>) -> tensor<5xf32>
  %h = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x5xf32>) -> tensor<4x5xf32>
  %y = onnx.Add(%h, %p) : (tensor<4x5xf32>, tensor<5xf32>) -> tensor<4x5xf32>
  func.return %y : tensor<4x5xf32>
}
