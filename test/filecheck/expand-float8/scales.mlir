// RUN: distir-opt %s -p expand-float8 | filecheck %s
// RUN: distir-opt %s -p "expand-float8,distribute{t=2 shard=\"w:0=t\",\"x:1=t\"}" | filecheck %s --check-prefix=SPLIT

// A tensor is scaled and rounded once for all products that take it in one format.
// CHECK:      [[S:%.*]] = train.float8_scale %x {scope = "q", format = "e4m3"} : (tensor<512x8192xf32>) -> tensor<f32>
// CHECK-NEXT: [[X:%.*]] = train.to_float8 %x, [[S]] {scope = "q"} : (tensor<512x8192xf32>, tensor<f32>) -> tensor<512x8192x!onnx.element<"float8e4m3fn">>
// CHECK-NEXT: [[T:%.*]] = train.float8_scale %w
// CHECK-NEXT: [[W:%.*]] = train.to_float8 %w, [[T]]
// CHECK-NEXT: train.float8_product [[X]], [[W]], [[S]], [[T]]
// CHECK-NEXT: [[U:%.*]] = train.float8_scale %v
// CHECK-NEXT: [[V:%.*]] = train.to_float8 %v, [[U]] {{.*}}-> tensor<8192x512x!onnx.element<"float8e5m2">>
// CHECK-NEXT: train.float8_product [[X]], [[V]], [[S]], [[U]]

// The scale of a tensor in parts is the least of the scales of its parts; the product of parts
// is a sum.
// SPLIT: train.float8_scale %x {{.*}}partial min {t}
// SPLIT: collective.all_reduce
// SPLIT: train.float8_product {{.*}}partial sum {t}

device.cluster @box {
  device.kind @gpu on [0 to 2] {memory = 32000000000 : i64, memory_bandwidth = 9.0e11 : f64, peak_flops = {default = 1.5e13 : f64}, launch_latency = 5.0e-6 : f64}
  device.link @switch spans 2 {bandwidth = 1.5e11 : f64, latency = 3.0e-6 : f64}
}
func.func @main(%x: tensor<512x8192xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<8192x512xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<8192x512xf32> {dist.role = "parameter", dist.name = "v"}) -> (tensor<512x512xf32>, tensor<512x512xf32>) {
  %q = train.float8_linear %x, %w {scope = "q", scaling = "tensor", a_format = "e4m3", b_format = "e4m3"} : (tensor<512x8192xf32>, tensor<8192x512xf32>) -> tensor<512x512xf32>
  %k = train.float8_linear %x, %v {scope = "k", scaling = "tensor", a_format = "e4m3", b_format = "e5m2"} : (tensor<512x8192xf32>, tensor<8192x512xf32>) -> tensor<512x512xf32>
  func.return %q, %k : tensor<512x512xf32>, tensor<512x512xf32>
}
