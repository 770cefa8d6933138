// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @main(%x: tensor<4x48xf32>) {
  // expected-error@+1 {{train.quantize_blocks: dimension 1 of quantized has 48 elements, which are no whole blocks of 32}}
  %q, %s = train.quantize_blocks %x {recipe = "mxfp8", axis = 1 : i64} : (tensor<4x48xf32>) -> (tensor<4x48x!onnx.element<"float8e4m3fn">>, tensor<4x1x!onnx.element<"float8e8m0">>)
  func.return
}

// -----

func.func @main(%x: tensor<4x64xf32>) {
  // expected-error@+1 {{train.quantize_blocks: scale of quantized has shape [4, 4], expected [4, 2]}}
  %q, %s = train.quantize_blocks %x {recipe = "mxfp8", axis = 1 : i64} : (tensor<4x64xf32>) -> (tensor<4x64x!onnx.element<"float8e4m3fn">>, tensor<4x4x!onnx.element<"float8e8m0">>)
  func.return
}

// -----

func.func @main(%x: tensor<4x64xf32>) {
  // expected-error@+1 {{train.quantize_blocks: scale of quantized has elements of type f32, expected !onnx.element<"float8e8m0">}}
  %q, %s = train.quantize_blocks %x {recipe = "mxfp8", axis = 1 : i64} : (tensor<4x64xf32>) -> (tensor<4x64x!onnx.element<"float8e4m3fn">>, tensor<4x2xf32>)
  func.return
}

// -----

func.func @main(%x: tensor<4x64xf32>) {
  // expected-error@+1 {{train.quantize_blocks: there is no recipe 'mxfp4'; choose from mxfp8, nvfp4}}
  %q, %s = train.quantize_blocks %x {recipe = "mxfp4", axis = 1 : i64} : (tensor<4x64xf32>) -> (tensor<4x64x!onnx.element<"float4e2m1">>, tensor<4x2x!onnx.element<"float8e8m0">>)
  func.return
}

// -----

func.func @main(%x: tensor<4x64xf32>) {
  // expected-error@+1 {{train.quantize_blocks: tensor_scale has 0 scales of whole tensors, expected 1 for nvfp4}}
  %q, %s = train.quantize_blocks %x {recipe = "nvfp4", axis = 1 : i64} : (tensor<4x64xf32>) -> (tensor<4x64x!onnx.element<"float4e2m1">>, tensor<4x4x!onnx.element<"float8e4m3fn">>)
  func.return
}

// -----

func.func @main(%x: tensor<2x32x64xf32>, %t: tensor<f32>) {
  // expected-error@+1 {{train.quantize_blocks: x has shape [2, 32, 64]; only matrices have square blocks}}
  %q, %s = train.quantize_blocks %x, %t {recipe = "nvfp4", axis = 1 : i64, square} : (tensor<2x32x64xf32>, tensor<f32>) -> (tensor<2x32x64x!onnx.element<"float4e2m1">>, tensor<2x2x4x!onnx.element<"float8e4m3fn">>)
  func.return
}

// -----

func.func @main(%a: tensor<4x64x!onnx.element<"float8e4m3fn">>, %b: tensor<32x8x!onnx.element<"float8e4m3fn">>, %s: tensor<4x2x!onnx.element<"float8e8m0">>, %t: tensor<1x8x!onnx.element<"float8e8m0">>) {
  // expected-error@+1 {{train.block_product: cannot multiply [4, 64] by [32, 8]; expected [..., m, k] and [k, n]}}
  %y = train.block_product %a, %b, %s, %t {recipe = "mxfp8"} : (tensor<4x64x!onnx.element<"float8e4m3fn">>, tensor<32x8x!onnx.element<"float8e4m3fn">>, tensor<4x2x!onnx.element<"float8e8m0">>, tensor<1x8x!onnx.element<"float8e8m0">>) -> tensor<4x8xf32>
  func.return
}

// -----

func.func @main(%a: tensor<4x32x!onnx.element<"float8e5m2">>, %b: tensor<32x8x!onnx.element<"float8e4m3fn">>, %s: tensor<4x1x!onnx.element<"float8e8m0">>, %t: tensor<1x8x!onnx.element<"float8e8m0">>) {
  // expected-error@+1 {{train.block_product: a has elements of type !onnx.element<"float8e5m2">, expected !onnx.element<"float8e4m3fn">}}
  %y = train.block_product %a, %b, %s, %t {recipe = "mxfp8"} : (tensor<4x32x!onnx.element<"float8e5m2">>, tensor<32x8x!onnx.element<"float8e4m3fn">>, tensor<4x1x!onnx.element<"float8e8m0">>, tensor<1x8x!onnx.element<"float8e8m0">>) -> tensor<4x8xf32>
  func.return
}

// -----

func.func @main(%a: tensor<4x32xf32>, %b: tensor<32x8xf32>, %k: tensor<32x4x!onnx.element<"float8e4m3fn">>) {
  // expected-error@+1 {{train.block_linear: kept has 1 values, expected 2 for mxfp8}}
  %y = train.block_linear %a, %b, %k {recipe = "mxfp8"} : (tensor<4x32xf32>, tensor<32x8xf32>, tensor<32x4x!onnx.element<"float8e4m3fn">>) -> tensor<4x8xf32>
  func.return
}
