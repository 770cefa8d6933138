// RUN: not distir-opt %s -p "quantize-caches" 2>&1 | filecheck %s

// A state that each step replaces is no cache of tokens.
// CHECK: error: quantize-caches: the program has no cache of keys and values, to which tokens are added (onnx.TensorScatter, train.paged_write), that could have 8 bits; leave cache_dtype out

func.func @main(%x: tensor<2x8xf32> {dist.role = "input", dist.name = "x"}, %state: tensor<2x8xf32> {dist.role = "cache", dist.name = "state"}) -> (tensor<2x8xf32>, tensor<2x8xf32> {dist.name = "state", dist.updates = "state"}) {
  %next = onnx.Add(%state, %x) : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %next, %next : tensor<2x8xf32>, tensor<2x8xf32>
}
