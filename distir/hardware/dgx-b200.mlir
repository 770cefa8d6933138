// One NVIDIA DGX B200: 8 B200 SXM of 180 GB behind NVSwitch.
// Dense peaks (f64 and f32 without tensor cores' TF32), HBM and NVLink 5 per direction: NVIDIA
// DGX B200 and HGX B200 data sheets, whose figures with sparsity are halved; memory is the
// nominal capacity in units of 1e9 bytes.
// `mxfp8` and `nvfp4`: the rates of 8-bit and of 4-bit floats (FP4) of the same data sheets.
// InfiniBand: 8 NDR adapters (50e9 B/s each), one per GPU (DGX B200 user guide).
// The switch could reduce while it forwards (NVLS); collectives are costed as rings, as
// most programs run them, so `in_fabric_reduction` is not set.
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @dgx_b200 {
  device.kind @B200 on [0 to 8] {
    memory = 180000000000 : i64,
    memory_bandwidth = 8.0e+12 : f64,
    peak_flops = {f16 = 2.25e+15 : f64, bf16 = 2.25e+15 : f64, f32 = 8.0e+13 : f64, f64 = 4.0e+13 : f64, i8 = 4.5e+15 : f64, float8e4m3fn = 4.5e+15 : f64, float8e5m2 = 4.5e+15 : f64, mxfp8 = 4.5e+15 : f64, nvfp4 = 9.0e+15 : f64, default = 8.0e+13 : f64},
    host_bandwidth = 5.0e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "B200"
  }
  device.link @nvlink spans 8 {bandwidth = 9.0e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 8 {bandwidth = 5.0e+10 : f64, latency = 1.0e-05 : f64}
}
