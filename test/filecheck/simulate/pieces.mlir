// RUN: distir-opt %s -p simulate 2>&1 >/dev/null | filecheck %s
// RUN: sed -e 's/{dist.asynchronous}//' %s | distir-opt -p simulate 2>&1 >/dev/null | filecheck %s --check-prefix=BLOCKING

// Sends between meshes of different shapes. Every message takes one second. Devices 0 and 1
// have half of the rows each (64 bytes): device 2 is sent both, one after the other, and
// devices 3 and 4 are sent their columns of each (32 bytes), two messages at a time.

device.cluster @five {
  device.kind @unit on [0 to 5] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 5 {bandwidth = 1.0e+30 : f64, latency = 1.0 : f64}
}
device.mesh @rows on @five <d = 2> [0 to 2]
device.mesh @one on @five <> [2]
device.mesh @columns on @five <t = 2> [3 to 5]
#R = #dist.layout<@rows, [{d}, {}]>
#O = #dist.layout<@one>
#C = #dist.layout<@columns, [{}, {t}]>

func.func @main(%x: tensor<8x4xf32, #R>) -> (tensor<8x4xf32, #O>, tensor<8x4xf32, #C>) {
  %y = dist.send %x {dist.asynchronous} : tensor<8x4xf32, #R> -> tensor<8x4xf32, #O>
  %z = dist.send %x {dist.asynchronous} : tensor<8x4xf32, #R> -> tensor<8x4xf32, #C>
  func.return %y, %z : tensor<8x4xf32, #O>, tensor<8x4xf32, #C>
}

// CHECK:      step time 2 s
// CHECK-NEXT: device  peak memory [B]  of [B]  sent [B]  FLOPs  compute [s]  communication [s]  idle [s]
// CHECK-NEXT: 0  64  1000000  128  0  0  0  2
// CHECK-NEXT: 1  64  1000000  128  0  0  0  2
// CHECK-NEXT: 2  128  1000000  0  0  0  0  2
// CHECK-NEXT: 3  64  1000000  0  0  0  0  2
// CHECK-NEXT: 4  64  1000000  0  0  0  0  2

// BLOCKING:      step time 4 s
// BLOCKING:      0  64  1000000  128  0  0  3  1
// BLOCKING-NEXT: 1  64  1000000  128  0  0  3  1
// BLOCKING-NEXT: 2  128  1000000  0  0  0  2  2
// BLOCKING-NEXT: 3  64  1000000  0  0  0  2  2
