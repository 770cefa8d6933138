// One node with 8 NVIDIA H800 SXM of 80 GB behind NVSwitch: an H100 with less NVLink.
// NVLink: 400e9 B/s in both directions together (DeepSeek-V3 technical report, arXiv
// 2412.19437, section 3.1, and DeepEP's README, which says about 160e9 B/s per direction in
// practice); f64 is cut to 1e12. The rest is the H100's data sheet.
// InfiniBand: 8 NDR adapters (50e9 B/s each), one per GPU (the same report).
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @h800 {
  device.kind @H800 on [0 to 8] {
    memory = 80000000000 : i64,
    memory_bandwidth = 3.35e+12 : f64,
    peak_flops = {f16 = 9.89e+14 : f64, bf16 = 9.89e+14 : f64, f32 = 6.7e+13 : f64, f64 = 1.0e+12 : f64, i8 = 1.979e+15 : f64, float8e4m3fn = 1.979e+15 : f64, float8e5m2 = 1.979e+15 : f64, default = 6.7e+13 : f64},
    host_bandwidth = 5.0e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "H800"
  }
  device.link @nvlink spans 8 {bandwidth = 2.0e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 8 {bandwidth = 5.0e+10 : f64, latency = 1.0e-05 : f64}
}
