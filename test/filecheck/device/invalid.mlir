// RUN: distir-opt %s --allow-unregistered-dialect --parsing-diagnostics --verify-diagnostics --split-input-file | filecheck %s

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 0 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
}
// CHECK: device kind @k: memory must be positive

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 0.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
}
// CHECK: device kind @k: memory_bandwidth must be positive

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {}, launch_latency = 0.0 : f64}
}
// CHECK: device kind @k: peak_flops names no element type

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {f17 = 1.0 : f64}, launch_latency = 0.0 : f64}
}
// CHECK: device kind @k: peak_flops names 'f17', which is no element type; write one such as f16, bf16, f32, f64, i8, or `default`

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {f16 = -1.0 : f64}, launch_latency = 0.0 : f64}
}
// CHECK: device kind @k: peak_flops of f16 must be positive

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {f16 = 1 : i64}, launch_latency = 0.0 : f64}
}
// CHECK: device kind @k: peak_flops of f16 must be a float

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = -1.0 : f64}
}
// CHECK: device kind @k: launch_latency must not be negative

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64, allocation_block = 0 : i64}
}
// CHECK: device kind @k: allocation_block must be positive

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 0.0 : f64, latency = 0.0 : f64}
}
// CHECK: device link @l: bandwidth must be positive

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 0x7FF8000000000000 : f64, latency = 0.0 : f64}
}
// CHECK: device link @l: bandwidth must be positive

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = -0.5 : f64}
}
// CHECK: device link @l: latency must not be negative

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 0 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
// CHECK: device link @l: the number of devices it spans must be positive

// -----

device.cluster @c {
  device.kind @k on [0, 0] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
// CHECK: cluster @c: its kinds must name each of the devices 0 to 1 exactly once

// -----

device.cluster @c {
  device.kind @k on [1 to 3] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
// CHECK: cluster @c: its kinds must name each of the devices 0 to 1 exactly once

// -----

device.cluster @c {
  device.kind @k on [0 to 3] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
// CHECK: cluster @c: no link connects all of its 3 devices

// -----

device.cluster @c {
  device.kind @k on [0 to 6] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @near spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
  device.link @far spans 6 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
// CHECK: cluster @c: link @far spans 6 devices, not a multiple of the 4 of the level inside it

// -----

device.cluster @c {
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
// CHECK: cluster @c has no device.kind

// -----

device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
  %0 = "test.op"() : () -> i32
}
// CHECK: cluster @c may hold only device.kind, device.link and device.route, not test.op

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @c <d = 8> [0 to 8]
// CHECK: mesh @m: device 7 does not exist; cluster @c has 4 devices

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @c <d = 2, d = 2> [0 to 4]
// CHECK: mesh @m: an axis is named twice

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @c <d = 2> [1, 1]
// CHECK: mesh @m: a device is listed twice

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @c <d = 2, t = 2> [0 to 3]
// CHECK: mesh @m: its axes (d=2 x t=2) do not cover its 3 devices

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @c <> [0 to 2]
// CHECK: mesh @m: its axes (no axes) do not cover its 2 devices

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @c <"a-b" = 4> [0 to 4]
// CHECK: mesh @m: axis 'a-b' of size 4 is not an identifier with a positive size

// -----

device.cluster @c {
  device.kind @k on [0 to 4] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 4 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
device.mesh @m on @m <> [0]
// CHECK: mesh @m: @m is not a cluster

// -----

"test.op"() ({
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  "test.termop"() : () -> ()
}) : () -> ()
// CHECK: expects parent op 'device.cluster'

// -----

device.mesh @m on @c <> [4 to 4]
// CHECK: a range of devices must contain a device

// -----

device.mesh @m on @c <> [0 to 4 step 0]
// CHECK: a range of devices must contain a device

// -----

// CHECK: cluster @c: route @cable names device 7, but there are 2 devices
device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
  device.route @cable between [0] and [7] {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}

// -----

// CHECK: device route @cable: device 1 is on both sides
device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
  device.route @cable between [0, 1] and [1] {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}

// -----

// CHECK: device route @cable: bandwidth must be positive
device.cluster @c {
  device.kind @k on [0 to 2] {memory = 1 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
  device.route @cable between [0] and [1] {bandwidth = 0.0 : f64, latency = 0.0 : f64}
}
