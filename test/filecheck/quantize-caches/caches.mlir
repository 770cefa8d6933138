// RUN: distir-opt %s -p "quantize-caches{cache_dtype=int8}" | filecheck %s
// RUN: distir-opt %s -p "quantize-caches{cache_dtype=fp8}" | filecheck %s --check-prefix=FLOAT
// RUN: not distir-opt %s -p "quantize-caches{cache_dtype=int4}" 2>&1 | filecheck %s --check-prefix=FORMAT

// A cache becomes rows and their scales. Of a prompt of 6 tokens a window of 4 keeps the
// last ones; attention to the prompt computes with what the cache would hold of all. A cache
// that is only read is converted where it is read; a state that is replaced stays.
// CHECK: %key_quantized: tensor<2x1x4x8xi8> {dist.role = "cache", dist.name = "key.quantized"}, %key_scale: tensor<2x1x4xf32> {dist.role = "cache", dist.name = "key.scale"}
// CHECK-SAME: %cross_quantized: tensor<2x1x6x8xi8>
// CHECK-SAME: %state: tensor<2x8xf32>
// CHECK-SAME: tensor<2x1x4x8xi8> {dist.name = "key.quantized", dist.updates = "key.quantized"}, tensor<2x1x4xf32> {dist.name = "key.scale", dist.updates = "key.scale"}
// CHECK: [[Q:%.*]], [[S:%.*]] = train.quantize_rows %x
// CHECK: [[X:%.*]] = train.dequantize_rows [[Q]], [[S]]
// CHECK: [[LAST:%.*]] = onnx.Slice(%x,
// CHECK: [[LQ:%.*]], [[LS:%.*]] = train.quantize_rows [[LAST]]
// CHECK: [[NQ:%.*]] = onnx.TensorScatter(%key_quantized, [[LQ]], %places) {axis = 2 : i64, mode = "circular"}
// CHECK: [[NS:%.*]] = onnx.TensorScatter(%key_scale, [[LS]], %places) {axis = 2 : i64, mode = "circular"}
// CHECK: [[C:%.*]] = train.dequantize_rows %cross_quantized, %cross_scale
// CHECK: onnx.Attention(%q, [[X]], [[C]])
// CHECK: func.return {{.*}}, [[NQ]], [[NS]]

// FLOAT: %key_quantized: tensor<2x1x4x8x!onnx.element<"float8e4m3fn">>
// FORMAT: error: quantize-caches: there is no cache format 'int4'; choose one of int8, fp8

func.func @main(%q: tensor<2x1x6x8xf32> {dist.role = "input", dist.name = "q"}, %x: tensor<2x1x6x8xf32> {dist.role = "input", dist.name = "x"}, %places: tensor<2xi64> {dist.role = "input", dist.name = "places"}, %key: tensor<2x1x4x8xf32> {dist.role = "cache", dist.name = "key"}, %cross: tensor<2x1x6x8xf32> {dist.role = "cache", dist.name = "cross"}, %state: tensor<2x8xf32> {dist.role = "cache", dist.name = "state"}) -> (tensor<2x1x6x8xf32>, tensor<2x1x4x8xf32> {dist.name = "key", dist.updates = "key"}, tensor<2x8xf32> {dist.name = "state", dist.updates = "state"}) {
  %start = onnx.Constant() {value = dense<-4> : tensor<1xi64>} : () -> tensor<1xi64>
  %end = onnx.Constant() {value = dense<6> : tensor<1xi64>} : () -> tensor<1xi64>
  %axis = onnx.Constant() {value = dense<-2> : tensor<1xi64>} : () -> tensor<1xi64>
  %last = onnx.Slice(%x, %start, %end, %axis) : (tensor<2x1x6x8xf32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<2x1x4x8xf32>
  %new = onnx.TensorScatter(%key, %last, %places) {axis = -2 : i64, mode = "circular"} : (tensor<2x1x4x8xf32>, tensor<2x1x4x8xf32>, tensor<2xi64>) -> tensor<2x1x4x8xf32>
  %y = onnx.Attention(%q, %x, %cross) : (tensor<2x1x6x8xf32>, tensor<2x1x6x8xf32>, tensor<2x1x6x8xf32>) -> tensor<2x1x6x8xf32>
  %next = onnx.Neg(%state) : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %y, %new, %next : tensor<2x1x6x8xf32>, tensor<2x1x4x8xf32>, tensor<2x8xf32>
}
