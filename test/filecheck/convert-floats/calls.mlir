// RUN: not distir-opt %s -p convert-floats 2>&1 | filecheck %s
// RUN: not distir-opt %s -p 'convert-floats{dtype=f8}' 2>&1 | filecheck %s --check-prefix=DTYPE
// RUN: not distir-opt %s -p 'autocast{dtype=f32}' 2>&1 | filecheck %s --check-prefix=NARROW

// CHECK: func.call %y {{.*}}before repeated layers become functions; run inline-calls first
// DTYPE: convert-floats: there is no type of floats 'f8'; choose one of bf16, f16, f32
// NARROW: autocast: there is no type for autocast 'f32'; choose one of bf16, f16
func.func @main(%x: tensor<4xf32> {dist.role = "input", dist.name = "x"}) -> tensor<4xf32> {
  %y = func.call @half(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
func.func private @half(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
