// Nodes of one NVIDIA V100S PCIe of 32 GB with a network adapter of 100 Gb/s (12.5e9 B/s):
// platform S1 of Rhino (section 7.1).
// Dense peaks and HBM: NVIDIA V100S datasheet; memory is the nominal capacity in units of
// 1e9 bytes, which leaves about 2e9 bytes to the driver.
// bf16 has no tensor cores on V100 and runs at the rate of f32.
// Latencies are round estimates, not data-sheet figures.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @v100_pcie_roce {
  device.kind @V100S on [0] {
    memory = 32000000000 : i64,
    memory_bandwidth = 1.134e+12 : f64,
    peak_flops = {f16 = 1.3e+14 : f64, f32 = 1.64e+13 : f64, f64 = 8.2e+12 : f64, default = 1.64e+13 : f64},
    host_bandwidth = 1.2e+10 : f64,
    launch_latency = 5.0e-06 : f64,
    profile = "V100S"
  }
  device.link @pcie spans 1 {bandwidth = 1.575e+10 : f64, latency = 5.0e-06 : f64}
  device.link @roce spans 1 {bandwidth = 1.25e+10 : f64, latency = 1.0e-05 : f64}
}
