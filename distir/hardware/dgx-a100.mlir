// One NVIDIA DGX A100: 8 A100 SXM of 80 GB behind NVSwitch.
// Dense peaks (f64 with tensor cores, f32 without TF32), HBM and NVLink per direction:
// NVIDIA A100 datasheet; memory is the nominal capacity in units of 1e9 bytes, which
// leaves about 5e9 bytes to the driver.
// InfiniBand: 8 HDR adapters (25e9 B/s each), one per GPU (DGX A100 user guide).
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @dgx_a100 {
  device.kind @A100 on [0 to 8] {
    memory = 80000000000 : i64,
    memory_bandwidth = 2.039e+12 : f64,
    peak_flops = {f16 = 3.12e+14 : f64, bf16 = 3.12e+14 : f64, f32 = 1.95e+13 : f64, f64 = 1.95e+13 : f64, i8 = 6.24e+14 : f64, default = 1.95e+13 : f64},
    host_bandwidth = 2.5e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "A100"
  }
  device.link @nvlink spans 8 {bandwidth = 3.0e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 8 {bandwidth = 2.5e+10 : f64, latency = 1.0e-05 : f64}
}
