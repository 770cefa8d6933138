// RUN: distir-opt %s -p outline-repeats | filecheck %s

// The ops repeat from the first Abs on, but a function that began there would have two
// results: %a and what Cos makes of it. Where the residual is added only one value lives,
// so the border is there.

func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = onnx.Abs(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = onnx.Add(%0, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = onnx.Sin(%1) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = onnx.Cos(%2) : (tensor<4xf32>) -> tensor<4xf32>
  %4 = onnx.Abs(%3) : (tensor<4xf32>) -> tensor<4xf32>
  %5 = onnx.Add(%4, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %6 = onnx.Sin(%5) : (tensor<4xf32>) -> tensor<4xf32>
  %7 = onnx.Cos(%6) : (tensor<4xf32>) -> tensor<4xf32>
  %8 = onnx.Abs(%7) : (tensor<4xf32>) -> tensor<4xf32>
  %9 = onnx.Add(%8, %5) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %9 : tensor<4xf32>
}

// CHECK:       func.func @main(
// CHECK-NEXT:    [[a:%.+]] = onnx.Abs(%x)
// CHECK-NEXT:    [[b:%.+]] = onnx.Add([[a]], %x)
// CHECK-NEXT:    [[c:%.+]] = func.call @repeat0([[b]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:    [[d:%.+]] = func.call @repeat0([[c]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:    func.return [[d]]
// CHECK:       func.func private @repeat0([[x:%.+]]: tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:    onnx.Sin([[x]])
// CHECK-NEXT:    onnx.Cos
// CHECK-NEXT:    onnx.Abs
// CHECK-NEXT:    onnx.Add({{.*}}, [[x]])
// CHECK-NEXT:    func.return
