// One node with 8 AMD Instinct MI300X of 192 GB, each with a link to each other one.
// Dense peaks (8-bit floats are this architecture's own, E4M3FNUZ and E5M2FNUZ, at the same
// rate), HBM and xGMI: AMD Instinct MI300X data sheet. Each of a device's seven links moves
// 64e9 B/s per direction; `bandwidth` is that of all seven, which only groups of all 8
// devices use. The profile knows the share that smaller groups get; without it (`--profile
// none`) groups of 2 and 4 are up to seven times too fast.
// Network: one adapter of 400 Gb/s per GPU, as vendors build these nodes.
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @mi300x {
  device.kind @MI300X on [0 to 8] {
    memory = 192000000000 : i64,
    memory_bandwidth = 5.3e+12 : f64,
    peak_flops = {f16 = 1.3074e+15 : f64, bf16 = 1.3074e+15 : f64, f32 = 1.634e+14 : f64, f64 = 8.17e+13 : f64, i8 = 2.6149e+15 : f64, float8e4m3fn = 2.6149e+15 : f64, float8e5m2 = 2.6149e+15 : f64, default = 1.634e+14 : f64},
    host_bandwidth = 5.0e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "MI300X"
  }
  device.link @xgmi spans 8 {bandwidth = 4.48e+11 : f64, latency = 5.0e-06 : f64}
  device.link @network spans 8 {bandwidth = 5.0e+10 : f64, latency = 1.0e-05 : f64, kind = "roce"}
}
