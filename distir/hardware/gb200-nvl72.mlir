// One NVIDIA GB200 NVL72: a rack with 72 Blackwell GPUs of 186 GB in one domain of NVLink.
// Dense peaks, HBM and NVLink 5 per direction of one GPU: NVIDIA GB200 NVL72 data sheet,
// whose figures are for the rack (divided by 72) and, for tensor cores, with sparsity (halved);
// memory is the nominal capacity in units of 1e9 bytes.
// `mxfp8` and `nvfp4`: the rates of 8-bit and of 4-bit floats (FP4) of the same data sheet.
// InfiniBand: one NDR adapter (50e9 B/s) per GPU, between racks.
// `host_bandwidth`: a Grace CPU serves two GPUs over NVLink-C2C, 450e9 B/s per direction
// (data sheet); a GPU gets half of it when both copy.
// Latencies are round estimates, not data-sheet figures.
device.cluster @gb200_nvl72 {
  device.kind @GB200 on [0 to 72] {
    memory = 186000000000 : i64,
    memory_bandwidth = 8.0e+12 : f64,
    peak_flops = {f16 = 2.5e+15 : f64, bf16 = 2.5e+15 : f64, f32 = 8.0e+13 : f64, f64 = 4.0e+13 : f64, i8 = 5.0e+15 : f64, float8e4m3fn = 5.0e+15 : f64, float8e5m2 = 5.0e+15 : f64, mxfp8 = 5.0e+15 : f64, nvfp4 = 1.0e+16 : f64, default = 8.0e+13 : f64},
    host_bandwidth = 2.25e+11 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "GB200"
  }
  device.link @nvlink spans 72 {bandwidth = 9.0e+11 : f64, latency = 5.0e-06 : f64}
  device.link @infiniband spans 72 {bandwidth = 5.0e+10 : f64, latency = 1.0e-05 : f64}
}
