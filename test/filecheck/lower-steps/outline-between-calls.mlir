// RUN: distir-opt %s -p outline-between-calls | filecheck %s
// RUN: distir-opt %s -p outline-between-calls,choose-graphs,compile-leaves | filecheck %s --check-prefix COMPILED

// The ops between the last two calls become a function, which a compiler can take. Those before
// the first call are too few.

func.func private @layer(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = onnx.Relu(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}

func.func @main(%x: tensor<4x8xf32>, %w: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %first = onnx.Neg(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %y = func.call @layer(%first) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = onnx.Sin(%y) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %b = onnx.Mul(%a, %w) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %c = onnx.Tanh(%b) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d = onnx.Sub(%c, %a) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %e = onnx.Cos(%d) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %f = onnx.Mul(%e, %w) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %g = onnx.Tanh(%f) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %h = onnx.Add(%g, %e) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %z = func.call @layer(%h) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %last = onnx.Add(%z, %a) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return %last : tensor<4x8xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %first = onnx.Neg(%x)
// CHECK-NEXT:   %y = func.call @layer(%first)
// CHECK-NEXT:   %{{.*}}, %{{.*}} = func.call @between0(%y, %w)
// CHECK-NEXT:   %z = func.call @layer(
// CHECK-NEXT:   %last = onnx.Add(
// CHECK-NEXT:   func.return %last
// CHECK:      func.func private @between0(
// CHECK-NEXT:   onnx.Sin
// CHECK:        onnx.Add
// CHECK-NEXT:   func.return

// COMPILED:     func.func private @layer{{.*}} attributes {dist.compiled = "inductor"}
// COMPILED-NOT: @main{{.*}}inductor
// COMPILED:     func.func private @between0{{.*}}dist.compiled = "inductor"
