// RUN: not distir-opt %s -p 'add-mesh{axes="c=2"},split-caches' 2>&1 | filecheck %s

// CHECK: error: split-caches: no cache of the program can be split over axis 'c': they have no positions, such as states of state-space layers; or choose degree 1

func.func @main(%x: tensor<2x1xf32> {dist.role = "input", dist.name = "x"}, %state: tensor<2x1xf32> {dist.role = "cache", dist.name = "state"}) -> (tensor<2x1xf32> {dist.name = "state", dist.updates = "state"}) {
  %next = onnx.Add(%state, %x) : (tensor<2x1xf32>, tensor<2x1xf32>) -> tensor<2x1xf32>
  func.return %next : tensor<2x1xf32>
}
