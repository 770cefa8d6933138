// One NVIDIA DGX H200: 8 H200 SXM of 141 GB behind NVSwitch.
// Dense peaks (f64 with tensor cores, f32 without TF32), HBM and NVLink per direction:
// NVIDIA H200 datasheet; memory is the nominal capacity in units of 1e9 bytes, which
// leaves about 9e9 bytes to the driver.
// InfiniBand: 8 NDR adapters (50e9 B/s each), one per GPU (DGX H200 user guide).
// The switch could reduce while it forwards (NVLS); collectives are costed as rings, as
// most programs run them, so `in_fabric_reduction` is not set.
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @dgx_h200 {
  device.kind @H200 on [0 to 8] {
    memory = 141000000000 : i64,
    memory_bandwidth = 4.8e+12 : f64,
    peak_flops = {f16 = 9.89e+14 : f64, bf16 = 9.89e+14 : f64, f32 = 6.7e+13 : f64, f64 = 6.7e+13 : f64, i8 = 1.979e+15 : f64, float8e4m3fn = 1.979e+15 : f64, float8e5m2 = 1.979e+15 : f64, default = 6.7e+13 : f64},
    host_bandwidth = 5.0e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "H200"
  }
  device.link @nvlink spans 8 {bandwidth = 4.5e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 8 {bandwidth = 5.0e+10 : f64, latency = 1.0e-05 : f64}
}
