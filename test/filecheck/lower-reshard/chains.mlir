// RUN: distir-opt %s -p "lower-reshard" | filecheck %s

device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
device.mesh @next on @box <d = 2, t = 2> [4 to 8]

#whole = #dist.layout<@mesh>
#split_d = #dist.layout<@mesh, [{d}, {}]>
#columns_t = #dist.layout<@mesh, [{}, {t}]>
#rows_t = #dist.layout<@mesh, [{t}, {}]>
#both = #dist.layout<@mesh, [{d, t}, {}]>
#partial_t = #dist.layout<@mesh, partial sum {t}>
#partial_dt = #dist.layout<@mesh, partial sum {d, t}>
#split_next = #dist.layout<@next, [{d}, {}]>

func.func @main(%a: tensor<8x8xf32, #partial_t>, %b: tensor<8x8xf32, #partial_dt>, %c: tensor<8x8xf32, #both>, %d: tensor<8x8xf32, #rows_t>, %e: tensor<8x8xf32, #whole>) -> () {
  // CHECK: collective.all_reduce %a over [t]
  %0 = dist.reshard %a : tensor<8x8xf32, #partial_t> -> tensor<8x8xf32, #whole>
  // CHECK-NEXT: collective.reduce_scatter %a over [t]
  %1 = dist.reshard %a : tensor<8x8xf32, #partial_t> -> tensor<8x8xf32, #columns_t>
  // CHECK-NEXT: collective.all_reduce %b over [d, t]
  %2 = dist.reshard %b : tensor<8x8xf32, #partial_dt> -> tensor<8x8xf32, #whole>
  // CHECK-NEXT: collective.all_gather %c over [d, t]
  %3 = dist.reshard %c : tensor<8x8xf32, #both> -> tensor<8x8xf32, #whole>
  // CHECK-NEXT: collective.all_to_all %d over [t]
  %4 = dist.reshard %d : tensor<8x8xf32, #rows_t> -> tensor<8x8xf32, #columns_t>
  // CHECK-NEXT: collective.slice %e over [d]
  %5 = dist.reshard %e : tensor<8x8xf32, #whole> -> tensor<8x8xf32, #split_d>
  // A value that gets smaller on its way is made so before it is sent.
  // CHECK-NEXT: %[[SMALL:.*]] = collective.slice %e over [d]
  // CHECK-NEXT: dist.send %[[SMALL]] : tensor<8x8xf32, #dist.layout<@mesh, [{d}, {}]>> -> tensor<8x8xf32, #dist.layout<@next, [{d}, {}]>>
  %6 = dist.reshard %e : tensor<8x8xf32, #whole> -> tensor<8x8xf32, #split_next>
  // CHECK-NEXT: func.return
  func.return
}
