// RUN: distir-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

func.func @too_few(%x: tensor<4xf32>) {
  // CHECK: onnx.MatMul takes 2 inputs, got 1
  %0 = onnx.MatMul(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @too_many(%x: tensor<4xf32>) {
  // CHECK: onnx.Clip takes 1 to 3 inputs, got 4
  %0 = onnx.Clip(%x, %x, %x, %x) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @none_given() {
  // CHECK: onnx.Concat takes at least 1 inputs, got 0
  %0 = onnx.Concat() {axis = 0 : i64} : () -> tensor<4xf32>
  func.return
}

// -----

func.func @required(%x: tensor<4xf32>) {
  // CHECK: onnx.MatMul: input 'A' is required
  %0 = onnx.MatMul(none, %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @results(%x: tensor<4xf32>) {
  // CHECK: onnx.Relu has 1 results, got 2
  %0, %1 = onnx.Relu(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

func.func @missing_attribute(%x: tensor<4xf32>) {
  // CHECK: property 'axis' expected in operation 'onnx.Concat'
  %0 = onnx.Concat(%x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @attribute_kind(%x: tensor<4xf32>) {
  // CHECK: onnx.Concat: attribute 'axis' must be an integer
  %0 = onnx.Concat(%x) {axis = "rows"} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @element_kind(%x: tensor<4xf32>) {
  // CHECK: onnx.Transpose: attribute 'perm' must be a list of integers
  %0 = onnx.Transpose(%x) {perm = [0.0 : f32]} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

func.func @operand_types(%x: tensor<4xf32>) {
  // CHECK: expected 0 operand types but had 1
  %0 = onnx.Relu(%x) : () -> tensor<4xf32>
  func.return
}

// -----

// Operators with a body have no counterpart.
func.func @body(%x: tensor<i1>) {
  // CHECK: Operation onnx.If is not registered
  %0 = onnx.If(%x) : (tensor<i1>) -> tensor<4xf32>
  func.return
}

// -----

func.func @base64() {
  // CHECK: expected the base64 text of a serialized tensor
  %0 = onnx.Constant() {value = #onnx.tensor<"?">} : () -> tensor<1xbf16>
  func.return
}

// -----

func.func @not_a_tensor() {
  // CHECK: not a serialized onnx.TensorProto
  %0 = onnx.Constant() {value = #onnx.tensor<"AAAA">} : () -> tensor<1xbf16>
  func.return
}
