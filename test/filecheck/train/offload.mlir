// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s -t torch | filecheck %s --check-prefix=TORCH

// CHECK: train.offload %x : (tensor<4x8xf32>) -> tensor<4x8x!dist.host<f32>>
// CHECK: train.fetch %{{.*}} : (tensor<4x8x!dist.host<f32>>) -> tensor<4x8xf32>

// TORCH: offload.offload(x)
// TORCH: offload.fetch(

func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = train.offload %x : (tensor<4x8xf32>) -> tensor<4x8x!dist.host<f32>>
  %1 = train.fetch %0 : (tensor<4x8x!dist.host<f32>>) -> tensor<4x8xf32>
  func.return %1 : tensor<4x8xf32>
}
