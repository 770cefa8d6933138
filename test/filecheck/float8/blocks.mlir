// RUN: distir-opt %s -p "float8{scaling=mxfp8 keep=none}" | filecheck %s
// RUN: distir-opt %s -p "float8{scaling=mxfp8 keep=none},differentiate{loss=mse optimizer=sgd},expand-float8" | filecheck %s --check-prefix=GRAD
// RUN: distir-opt %s -p "float8{scaling=nvfp4 keep=none},differentiate{loss=mse optimizer=sgd},expand-float8" | filecheck %s --check-prefix=NARROW
// RUN: distir-opt %s -p "float8{scaling=nvfp4 keep=none},expand-float8" | filecheck %s --check-prefix=FORWARD
// RUN: not distir-opt %s -p "float8{scaling=mxfp4}" 2>&1 | filecheck %s --check-prefix=NAME

// The blocks of the transposed input are made in the forward pass, for the gradient of the weight.
// CHECK:      [[T:%.*]] = onnx.Transpose(%x)
// CHECK-NEXT: [[Q:%.*]], [[S:%.*]] = train.quantize_blocks [[T]] {scope = "up", recipe = "mxfp8", axis = 1 : i64} : (tensor<96x64xf32>) -> (tensor<96x64x!onnx.element<"float8e4m3fn">>, tensor<96x2x!onnx.element<"float8e8m0">>)
// CHECK-NEXT: train.block_linear %x, %w, [[Q]], [[S]] {scope = "up", recipe = "mxfp8"}

// Each product has blocks along the dimension that it sums over: x w forward, x' dy backward.
// GRAD: [[A:%.*]], [[SA:%.*]] = train.quantize_blocks %x {scope = "up", recipe = "mxfp8", axis = 1 : i64}
// GRAD: [[B:%.*]], [[SB:%.*]] = train.quantize_blocks %w {scope = "up", recipe = "mxfp8", axis = 0 : i64}
// GRAD: train.block_product [[A]], [[B]], [[SA]], [[SB]]
// GRAD: [[D:%.*]], [[SD:%.*]] = train.quantize_blocks {{.*}}axis = 0 : i64
// GRAD: train.block_product %{{.*}}, [[D]], %{{.*}}, [[SD]]

// In 4 bits, a tensor also has a scale, which its transpose shares; blocks of the weight are squares.
// NARROW: [[X:%.*]] = train.float8_scale %{{.*}} {scope = "up", format = "nvfp4"}
// NARROW: train.quantize_blocks %{{.*}}, [[X]] {scope = "up", recipe = "nvfp4", axis = 1 : i64}
// NARROW: train.quantize_blocks %x, [[X]]
// NARROW: [[W:%.*]] = train.float8_scale %w
// NARROW: train.quantize_blocks %w, [[W]] {scope = "up", recipe = "nvfp4", axis = 0 : i64, square} {{.*}} -> (tensor<96x32x!onnx.element<"float4e2m1">>, tensor<6x2x!onnx.element<"float8e4m3fn">>)
// NARROW: train.block_product %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, [[X]], [[W]] {scope = "up", recipe = "nvfp4", square}

// Without gradients, nothing is kept for them.
// FORWARD-NOT: onnx.Transpose
// FORWARD:     train.block_product

// NAME: error: float8: there is no scaling 'mxfp4'; choose one of tensor, row, row-gw-hp, mxfp8, nvfp4

func.func @main(%x: tensor<64x96xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<96x32xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<64x32xf32> {
  %y = onnx.MatMul(%x, %w) {scope = "up"} : (tensor<64x96xf32>, tensor<96x32xf32>) -> tensor<64x32xf32>
  func.return %y : tensor<64x32xf32>
}
