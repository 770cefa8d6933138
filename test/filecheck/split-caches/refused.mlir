// RUN: not distir-opt %s -p 'add-mesh{axes="c=3"},split-caches' 2>&1 | filecheck %s --check-prefix=UNEVEN
// RUN: not distir-opt %s -p "distribute{cache_split=positions}" 2>&1 | filecheck %s --check-prefix=ALONE
// RUN: not distir-opt %s -p "distribute{t=2 cache_split=positions sequence_parallel=true}" 2>&1 | filecheck %s --check-prefix=AXES
// RUN: not distir-opt %s -p "distribute{t=2 cache_split=rows}" 2>&1 | filecheck %s --check-prefix=KIND

// UNEVEN: error: split-caches: the 8 positions of cache 'key' cannot be split evenly over axis 'c' of size 3; build or import the program with a --cache that is a multiple of 3, or choose another degree
// ALONE:  error: distribute: cache_split=positions says how the tensor-parallel devices share caches, but t is 1; choose a larger -t, or split positions with -c
// AXES:   error: distribute: cache_split=positions makes two axes of the devices of t, which sequence_parallel needs as one; leave out one of the two
// KIND:   error: distribute: there is no split of caches 'rows'; choose one of heads, positions

func.func @main(%ids: tensor<2x1xi64> {dist.role = "input", dist.name = "ids"}, %x: tensor<2x1x1x8xf32> {dist.role = "input", dist.name = "x"}, %places: tensor<2xi64> {dist.role = "input", dist.name = "places"}, %key: tensor<2x1x8x8xf32> {dist.role = "cache", dist.name = "key"}) -> (tensor<2x1x8x8xf32> {dist.name = "key", dist.updates = "key"}) {
  %new = onnx.TensorScatter(%key, %x, %places) {axis = -2 : i64, mode = "circular"} : (tensor<2x1x8x8xf32>, tensor<2x1x1x8xf32>, tensor<2xi64>) -> tensor<2x1x8x8xf32>
  func.return %new : tensor<2x1x8x8xf32>
}
