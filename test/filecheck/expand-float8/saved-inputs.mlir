// RUN: distir-opt %s -p expand-float8 | filecheck %s

// A layer and its backward pass, which multiplies the layer's input (here a ReLU's result) by
// the gradient. Both round this input in the same format, so the layer returns it rounded,
// with its scale, and the backward pass views the rounded values.

// CHECK:       func.func private @forward(%x: {{.*}}, %w: {{.*}}) -> (tensor<4x2xf32>, tensor<4x3x!onnx.element<"float8e4m3fn">>, tensor<f32>)
// CHECK-NEXT:    %a = onnx.Relu(%x)
// CHECK-NEXT:    %[[S:.*]] = train.float8_scale %a
// CHECK-NEXT:    %[[A:.*]] = train.to_float8 %a, %[[S]]
// CHECK:         func.return %y, %[[A]], %[[S]]
func.func private @forward(%x: tensor<4x3xf32>, %w: tensor<3x2xf32>) -> (tensor<4x2xf32>, tensor<4x3xf32>) {
  %a = onnx.Relu(%x) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %y = train.float8_linear %a, %w {scaling = "tensor", a_format = "e4m3", b_format = "e4m3"} : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y, %a : tensor<4x2xf32>, tensor<4x3xf32>
}

// CHECK:       func.func private @backward(%a: tensor<4x3x!onnx.element<"float8e4m3fn">>, %[[SA:.*]]: tensor<f32>, %dy: tensor<4x2xf32>)
// CHECK-NEXT:    %{{.*}} = onnx.Transpose(%a)
// CHECK-NEXT:    %[[SY:.*]] = train.float8_scale %dy
// CHECK-NEXT:    %[[DY:.*]] = train.to_float8 %dy, %[[SY]]
// CHECK-NEXT:    %dw = train.float8_product %{{.*}}, %[[DY]], %[[SA]], %[[SY]]
func.func private @backward(%a: tensor<4x3xf32>, %dy: tensor<4x2xf32>) -> tensor<3x2xf32> attributes {train.forward = @forward, train.saved = ["result 1"]} {
  %t = onnx.Transpose(%a) {perm = [1 : i64, 0 : i64]} : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %dw = train.float8_linear %t, %dy {scaling = "tensor", a_format = "e4m3", b_format = "e5m2"} : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  func.return %dw : tensor<3x2xf32>
}

// The backward pass of this layer also needs the input itself, which stays as it is.
// CHECK:       func.func private @other_backward(%a: tensor<4x3xf32>, %dy: tensor<4x2xf32>)
func.func private @other(%x: tensor<4x3xf32>, %w: tensor<3x2xf32>) -> (tensor<4x2xf32>, tensor<4x3xf32>) {
  %a = onnx.Relu(%x) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  %y = train.float8_linear %a, %w {scaling = "tensor", a_format = "e4m3", b_format = "e4m3"} : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32>
  func.return %y, %a : tensor<4x2xf32>, tensor<4x3xf32>
}
func.func private @other_backward(%a: tensor<4x3xf32>, %dy: tensor<4x2xf32>) -> (tensor<3x2xf32>, tensor<4x3xf32>) attributes {train.forward = @other, train.saved = ["result 1"]} {
  %t = onnx.Transpose(%a) {perm = [1 : i64, 0 : i64]} : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %dw = train.float8_linear %t, %dy {scaling = "tensor", a_format = "e4m3", b_format = "e5m2"} : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  %n = onnx.Neg(%a) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  func.return %dw, %n : tensor<3x2xf32>, tensor<4x3xf32>
}

// CHECK:       func.func @main
// CHECK-NEXT:    %y1, %[[A1:.*]], %[[S1:.*]] = func.call @forward(%x, %w)
// CHECK:         func.call @backward(%[[A1]], %[[S1]], %d2)
func.func @main(%x: tensor<4x3xf32>, %w: tensor<3x2xf32>, %d2: tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<4x3xf32>) {
  %y1, %a1 = func.call @forward(%x, %w) : (tensor<4x3xf32>, tensor<3x2xf32>) -> (tensor<4x2xf32>, tensor<4x3xf32>)
  %y2, %a2 = func.call @other(%x, %w) : (tensor<4x3xf32>, tensor<3x2xf32>) -> (tensor<4x2xf32>, tensor<4x3xf32>)
  %dw2, %n = func.call @other_backward(%a2, %d2) : (tensor<4x3xf32>, tensor<4x2xf32>) -> (tensor<3x2xf32>, tensor<4x3xf32>)
  %dw1 = func.call @backward(%a1, %d2) : (tensor<4x3xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
  func.return %y1, %y2, %dw1, %dw2, %n : tensor<4x2xf32>, tensor<4x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<4x3xf32>
}
