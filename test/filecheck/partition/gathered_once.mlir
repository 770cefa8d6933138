// RUN: distir-opt %s -p "propagate-sharding,partition" | filecheck %s

// A parameter stored split (ZeRO stage 3) is gathered for each of its uses in the entry
// function, which may be far apart, but once in a function: a layer recomputed in its
// backward uses its parameters several times, and gathering costs traffic each time.

// CHECK-LABEL: func.func @main
// CHECK:       %[[A:.*]] = collective.all_gather %v over [d]
// CHECK-NEXT:  onnx.MatMul(%x, %[[A]])
// CHECK-NEXT:  func.call @layer(%{{.*}}, %w)
// CHECK-NEXT:  %[[B:.*]] = collective.all_gather %v over [d]
// CHECK-NEXT:  onnx.MatMul(%{{.*}}, %[[B]])

// CHECK-LABEL: func.func private @layer
// CHECK:       %[[W:.*]] = collective.all_gather %w over [d]
// CHECK-NEXT:  onnx.MatMul(%x, %[[W]])
// CHECK-NEXT:  onnx.MatMul(%{{.*}}, %[[W]])

device.mesh @mesh on @box <d = 2> [0 to 2]
func.func @main(%x: tensor<4x8xf32> {dist.role = "input", dist.layout = #dist.layout<@mesh, [{d}, {}]>}, %v: tensor<8x8xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{d}, {}]>}, %w: tensor<8x8xf32> {dist.role = "parameter", dist.layout = #dist.layout<@mesh, [{d}, {}]>}) -> tensor<4x8xf32> {
  %0 = onnx.MatMul(%x, %v) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = func.call @layer(%0, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = onnx.MatMul(%1, %v) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %2 : tensor<4x8xf32>
}
func.func private @layer(%x: tensor<4x8xf32>, %w: tensor<8x8xf32> {dist.role = "parameter"}) -> tensor<4x8xf32> {
  %0 = onnx.MatMul(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = onnx.MatMul(%0, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  func.return %1 : tensor<4x8xf32>
}
