// A profile says what the devices reach in practice; without one they are as their data
// sheets say.
// RUN: distir-opt %s -p "simulate{cluster=dgx-a100}" 2>&1 >/dev/null | filecheck %s --check-prefix IDEAL
// RUN: distir-opt %s -p "simulate{cluster=dgx-a100 profile=A100}" 2>&1 >/dev/null | filecheck %s --check-prefix REAL
// RUN: distir-opt %s -p "simulate{cluster=dgx-a100 profile=auto}" 2>&1 >/dev/null | filecheck %s --check-prefix REAL
// RUN: not distir-opt %s -p "simulate{cluster=dgx-a100 profile=H100}" 2>&1 | filecheck %s --check-prefix OTHER
// RUN: not distir-opt %s -p "simulate{cluster=cpu profile=auto}" 2>&1 | filecheck %s --check-prefix UNNAMED

func.func @main(%x: tensor<1024x4096xf16>, %w: tensor<4096x4096xf16>) -> tensor<1024x4096xf16> {
  %h = onnx.MatMul(%x, %w) : (tensor<1024x4096xf16>, tensor<4096x4096xf16>) -> tensor<1024x4096xf16>
  func.return %h : tensor<1024x4096xf16>
}

// 2 x 1024 x 4096 x 4096 operations at 312e12 a second, after a launch of 5 us.
// IDEAL: step time 0.000115

// 8 x 16 tiles of 128 x 256 would take 108 multiprocessors two rounds. With the sums split in
// two they take three rounds of half the length, at 81 % of the peak, and 8 bytes for each
// element of either half to add them up.
// REAL: step time 0.000228549

// OTHER: profile H100 is for device @H100, but cluster @dgx_a100 has @A100
// UNNAMED: device kind @core of cluster @cpu names no profile
