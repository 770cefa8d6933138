// One NVIDIA DGX H100: 8 H100 SXM of 80 GB behind NVSwitch.
// Dense peaks (f64 with tensor cores, f32 without TF32), HBM and NVLink per direction:
// NVIDIA H100 datasheet; memory is the nominal capacity in units of 1e9 bytes, which
// leaves about 5e9 bytes to the driver.
// InfiniBand: 8 NDR adapters (50e9 B/s each), one per GPU (DGX H100 user guide).
// The switch could reduce while it forwards (NVLS); collectives are costed as rings, as
// most programs run them, so `in_fabric_reduction` is not set.
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @dgx_h100 {
  device.kind @H100 on [0 to 8] {
    memory = 80000000000 : i64,
    memory_bandwidth = 3.35e+12 : f64,
    peak_flops = {f16 = 9.89e+14 : f64, bf16 = 9.89e+14 : f64, f32 = 6.7e+13 : f64, f64 = 6.7e+13 : f64, i8 = 1.979e+15 : f64, float8e4m3fn = 1.979e+15 : f64, float8e5m2 = 1.979e+15 : f64, default = 6.7e+13 : f64},
    host_bandwidth = 5.0e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "H100"
  }
  device.link @nvlink spans 8 {bandwidth = 4.5e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 8 {bandwidth = 5.0e+10 : f64, latency = 1.0e-05 : f64}
}
