// RUN: distir-opt %s -p choose-graphs | filecheck %s
// RUN: distir-opt %s -p choose-graphs,compile-leaves | filecheck %s --check-prefix COMPILED
// RUN: distir-opt %s -p choose-graphs -t torch | filecheck %s --check-prefix TORCH

// A function whose shapes depend on values cannot be captured; the reason stays with it. Any
// function that calls no others can be compiled instead.

func.func private @graph(%x: tensor<4xf32>) -> tensor<4xf32> attributes {dist.compiled = "cuda_graph"} {
  %y = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

func.func private @dynamic(%x: tensor<4xf32>) -> tensor<1x?xi64> attributes {dist.compiled = "cuda_graph"} {
  %y = onnx.NonZero(%x) : (tensor<4xf32>) -> tensor<1x?xi64>
  func.return %y : tensor<1x?xi64>
}

func.func @main(%x: tensor<4xf32>) -> tensor<1x?xi64> {
  %y = func.call @graph(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %p = onnx.Add(%y, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %z = func.call @dynamic(%p) : (tensor<4xf32>) -> tensor<1x?xi64>
  func.return %z : tensor<1x?xi64>
}

// CHECK:      builtin.module attributes {torch.printable}
// CHECK:      func.func private @graph{{.*}} attributes {dist.compiled = "cuda_graph"}
// CHECK:      func.func private @dynamic{{.*}} attributes {torch.no_graph = "{{.*}}gives a value whose shape depends on other values"}

// COMPILED:   func.func private @graph{{.*}} attributes {dist.compiled = "cuda_graph"}
// COMPILED:   func.func private @dynamic{{.*}}dist.compiled = "inductor"
// COMPILED:   func.func @main(%x: tensor<4xf32>) -> tensor<1x?xi64> {

// TORCH:      @graphs.captured
// TORCH-NEXT: def graph(self, x):
