// One NVIDIA DGX-2: 16 V100 SXM3 of 32 GB behind NVSwitch.
// Dense peaks, HBM and NVLink per direction: NVIDIA V100 datasheet; memory is the
// nominal capacity in units of 1e9 bytes, which leaves about 2e9 bytes to the driver.
// InfiniBand: 8 EDR adapters (12.5e9 B/s each) shared by 16 GPUs.
// bf16 has no tensor cores on V100 and runs at the rate of f32.
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @dgx2 {
  device.kind @V100 on [0 to 16] {
    memory = 32000000000 : i64,
    memory_bandwidth = 9.0e+11 : f64,
    peak_flops = {f16 = 1.25e+14 : f64, f32 = 1.57e+13 : f64, f64 = 7.8e+12 : f64, default = 1.57e+13 : f64},
    host_bandwidth = 1.2e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "V100"
  }
  device.link @nvlink spans 16 {bandwidth = 1.5e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 16 {bandwidth = 6.25e+09 : f64, latency = 1.0e-05 : f64}
}
