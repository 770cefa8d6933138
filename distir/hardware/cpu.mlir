// This machine without accelerators: one device per process, at most 16 processes, each
// with one thread. Plausible figures for one core of a small server, not a measurement:
// peaks are AVX2 with two fused multiply-adds a cycle at 2.5 GHz (16-bit types are
// emulated), memory is a core's share, the link is gloo between processes of one machine.
// `host_bandwidth` is a round estimate of what copies to pinned memory reach.
device.cluster @cpu {
  device.kind @core on [0 to 16] {
    memory = 4000000000 : i64,
    memory_bandwidth = 1.0e+10 : f64,
    peak_flops = {f32 = 8.0e+10 : f64, f64 = 4.0e+10 : f64, default = 8.0e+09 : f64},
    host_bandwidth = 1.0e+10 : f64,
    launch_latency = 1.0e-05 : f64
  }
  device.link @gloo spans 16 {bandwidth = 2.0e+09 : f64, latency = 1.0e-04 : f64}
}
