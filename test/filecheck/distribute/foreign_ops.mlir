// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" | distir-opt -p verify-distribution | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" 2>&1 >/dev/null | filecheck %s --check-prefix NOTE
// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu},project{rank=1}" | distir-opt | filecheck %s --check-prefix RANK

// An op of another dialect without a rule: every device computes it whole, and a note says so.
// Constants have the type of their result; bodies on single elements stay.

// NOTE: note: 1 of 5 ops have no sharding rule, so that every device computes them whole: 1 tensor.reshape

// CHECK:      %z = arith.constant dense<0xFF800000> : tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t}]>>
// CHECK:      linalg.generic
// CHECK-NEXT: ^bb0(%a: f32, %b: f32, %c: f32):
// CHECK-NEXT:   arith.mulf %a, %b : f32
// CHECK-NEXT:   arith.addf %c
// CHECK-NEXT:   linalg.yield
// CHECK:      arith.maximumf {{.*}} : tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t}]>>
// CHECK:      onnx.Relu({{.*}}) : (tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>)
// CHECK:      tensor.reshape {{.*}}-> tensor<16x8xf32, #dist.layout<@mesh>>

// RANK: %z = arith.constant dense<0xFF800000> : tensor<4x16xf32>
#lhs = affine_map<(d0, d1, d2) -> (d0, d2)>
#rhs = affine_map<(d0, d1, d2) -> (d2, d1)>
#out = affine_map<(d0, d1, d2) -> (d0, d1)>
func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"}, %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<16x8xf32> {
  %z = arith.constant dense<0xFF800000> : tensor<8x32xf32>
  %h = linalg.generic {indexing_maps = [#lhs, #rhs, #out], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x, %w : tensor<8x16xf32>, tensor<16x32xf32>) outs(%z : tensor<8x32xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x32xf32>
  %r = arith.maximumf %h, %z : tensor<8x32xf32>
  %z2 = tensor.empty() : tensor<8x16xf32>
  %y = linalg.matmul ins(%r, %v : tensor<8x32xf32>, tensor<32x16xf32>) outs(%z2 : tensor<8x16xf32>) -> tensor<8x16xf32>
  %q = onnx.Relu(%y) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %n = arith.constant dense<[16, 8]> : tensor<2xi64>
  %c = tensor.reshape %q(%n) : (tensor<8x16xf32>, tensor<2xi64>) -> tensor<16x8xf32>
  func.return %c : tensor<16x8xf32>
}
