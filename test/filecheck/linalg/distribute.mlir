// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu}" | filecheck %s
// RUN: distir-opt %s -p "distribute{d=2 t=2 cluster=cpu},verify-distribution,project{rank=3}" | filecheck %s --check-prefix RANK

// Rules of linalg follow from indexing maps and bodies: the first product is split by
// columns and the second by rows, with one all-reduce. Tensors of equal elements are made
// in the layout of their user, so that nothing is sliced.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %w: tensor<16x32xf32, #dist.layout<@mesh, [{}, {t}]>>
// CHECK-SAME: %v: tensor<32x16xf32, #dist.layout<@mesh, [{t}, {}]>>
// CHECK-NEXT: %z = arith.constant dense<0.000000e+00> : tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t}]>>
// CHECK-NEXT: %h = linalg.generic
// CHECK: %r = arith.maximumf %h, %z : tensor<8x32xf32, #dist.layout<@mesh, [{d}, {t}]>>
// CHECK-NEXT: tensor.empty() : tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-NEXT: %y = linalg.matmul
// CHECK-NEXT: collective.all_reduce %y over [t]
// CHECK-NEXT: func.return

// RANK-LABEL: func.func @main
// RANK-SAME: %w: tensor<16x16xf32>
// RANK: arith.constant dense<0.000000e+00> : tensor<4x16xf32>
// RANK: linalg.generic {{.*}}outs(%{{.*}} : tensor<4x16xf32>)
// RANK: tensor.empty() : tensor<4x16xf32>
// RANK: linalg.matmul
// RANK-NEXT: collective.rank.all_reduce
func.func @main(
    %x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
    %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"},
    %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<8x16xf32> {
  %z = arith.constant dense<0.0> : tensor<8x32xf32>
  %h = linalg.generic {
      indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
                       affine_map<(i, j, k) -> (i, j)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<8x16xf32>, tensor<16x32xf32>) outs(%z : tensor<8x32xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %c, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x32xf32>
  %r = arith.maximumf %h, %z : tensor<8x32xf32>
  %e = tensor.empty() : tensor<8x16xf32>
  %y = linalg.matmul ins(%r, %v : tensor<8x32xf32>, tensor<32x16xf32>)
    outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
