// RUN: distir build mlp --layers 2 --d-model 8 --batch 4 -o %t.mlir && distir-opt %t.mlir | filecheck %s

// A layer is one function; @main has the weights of every layer and calls it twice.

// CHECK:      func.func @main(%input: tensor<4x8xf32> {dist.role = "input", dist.name = "input"}
// CHECK-SAME: "layers.0.weight"
// CHECK-SAME: "layers.1.bias"
// CHECK-SAME: -> (tensor<4x8xf32> {dist.name = "output"})
// CHECK-NEXT:   %0 = func.call @layer(%input, {{.*}}) {scope = "layers.0"}
// CHECK-NEXT:   %1 = func.call @layer(%0, {{.*}}) {scope = "layers.1"}
// CHECK-NEXT:   func.return %1 : tensor<4x8xf32>
// CHECK:      func.func private @layer(
// CHECK-SAME: dist.name = "layers.*.weight"
// CHECK-NEXT:   onnx.Gemm{{.*}} {scope = "layers.*"} : (tensor<4x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<4x8xf32>
// CHECK-NEXT:   onnx.Relu{{.*}} {scope = "layers.*"}
