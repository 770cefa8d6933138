// RUN: distir-opt %s -p 'add-mesh{axes="d=2" cluster=dgx2}' | filecheck %s
// RUN: distir-opt %s -p 'distribute{d=2 t=2 cluster=dgx2}' | filecheck %s --check-prefix=DISTRIBUTE
// RUN: distir-opt %s -p 'search-sharding{axes="d=4" cluster=dgx2}' | filecheck %s --check-prefix=SEARCH
// RUN: not distir-opt %s -p 'add-mesh{axes="d=2" cluster=dgx22}' 2>&1 | filecheck %s --check-prefix=UNKNOWN

// A module without a cluster gets a built-in one, or the one of a file.

// CHECK:      device.cluster @dgx2
// CHECK:      device.mesh @mesh on @dgx2 <d = 2> [0 to 2]
// DISTRIBUTE: device.mesh @mesh on @dgx2 <d = 2, t = 2> [0 to 4]
// SEARCH:     device.mesh @mesh on @dgx2 <d = 4> [0 to 4]
// UNKNOWN:    error: {{.*}}'dgx22'{{.*}}dgx2

func.func @main(%x: tensor<8x64xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<64x128xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x128xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<8x64xf32>, tensor<64x128xf32>) -> tensor<8x128xf32>
  func.return %h : tensor<8x128xf32>
}
