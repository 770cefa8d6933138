// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

device.cluster @mixed {
  device.kind @fast on [0 to 2, 4] {memory = 32 : i64, memory_bandwidth = 9.0 : f64, peak_flops = {f16 = 4.0 : f64, default = 2.0 : f64}, launch_latency = 0.0 : f64, profile = "v100"}
  device.kind @slow on [3, 2, 5] {memory = 16 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {f32 = 1.0 : f64}, launch_latency = 0.5 : f64, allocation_block = 512 : i64}
  device.link @inner spans 3 {bandwidth = 2.0 : f64, latency = 0.0 : f64, in_fabric_reduction = true}
  device.link @outer spans 6 {bandwidth = 1.0 : f64, latency = 0.25 : f64}
  device.route @cable between [0 to 3] and [4] {bandwidth = 0.5 : f64, latency = 1.0 : f64}
}
device.cluster @"one device" {
  device.kind @only on [0] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
}
device.mesh @grid on @mixed <d = 2, t = 3> [0 to 6]
device.mesh @strided on @mixed <d = 3> [0 to 5 step 2]
device.mesh @listed on @mixed <d = 2, t = 2> [5, 0, 3, 1]
device.mesh @single on @mixed <> [3]
device.mesh @later on @unknown <> [9]

// CHECK:      device.cluster @mixed {
// CHECK-NEXT:   device.kind @fast on [0 to 2, 4] {memory = 32 : i64, memory_bandwidth = 9.000000e+00 : f64, peak_flops = {f16 = 4.000000e+00 : f64, default = 2.000000e+00 : f64}, launch_latency = 0.000000e+00 : f64, profile = "v100"}
// CHECK-NEXT:   device.kind @slow on [3, 2, 5] {memory = 16 : i64, memory_bandwidth = 1.000000e+00 : f64, peak_flops = {f32 = 1.000000e+00 : f64}, launch_latency = 5.000000e-01 : f64, allocation_block = 512 : i64}
// CHECK-NEXT:   device.link @inner spans 3 {bandwidth = 2.000000e+00 : f64, latency = 0.000000e+00 : f64, in_fabric_reduction = true}
// CHECK-NEXT:   device.link @outer spans 6 {bandwidth = 1.000000e+00 : f64, latency = 2.500000e-01 : f64}
// CHECK-NEXT:   device.route @cable between [0 to 3] and [4] {bandwidth = 5.000000e-01 : f64, latency = 1.000000e+00 : f64}
// CHECK-NEXT: }
// CHECK-NEXT: device.cluster @"one device" {
// CHECK-NEXT:   device.kind @only on [0]
// CHECK-NEXT: }
// CHECK-NEXT: device.mesh @grid on @mixed <d = 2, t = 3> [0 to 6]
// CHECK-NEXT: device.mesh @strided on @mixed <d = 3> [0 to 5 step 2]
// CHECK-NEXT: device.mesh @listed on @mixed <d = 2, t = 2> [5, 0, 3, 1]
// CHECK-NEXT: device.mesh @single on @mixed <> [3]
// CHECK-NEXT: device.mesh @later on @unknown <> [9]

// GENERIC: "device.kind"() <{sym_name = "fast", devices = #device.ids<[0 to 2, 4]>
// GENERIC: "device.mesh"() <{sym_name = "grid", cluster = @mixed, axes = #device.axes<d = 2, t = 3>, devices = #device.ids<[0 to 6]>}> : () -> ()
// GENERIC: "device.mesh"() <{sym_name = "single", cluster = @mixed, axes = #device.axes<>, devices = #device.ids<[3]>}> : () -> ()
