// RUN: distir-opt %s -p "decompose-collectives,verify-distribution" | filecheck %s
// RUN: distir-opt %s -p "decompose-collectives{collectives=all_to_all}" | filecheck %s --check-prefix ONE
// RUN: not distir-opt %s -p "decompose-collectives{collectives=all_gather}" 2>&1 | filecheck %s --check-prefix KIND

// The collectives of one message stay next to each other.

// CHECK:      %[[A:.*]] = collective.all_reduce %x over [t] {dist.asynchronous, dist.bucket = 1 : i64}
// CHECK-NEXT: %[[B:.*]] = collective.all_reduce %y over [t] {dist.asynchronous, dist.bucket = 1 : i64}
// CHECK-NEXT: %a = collective.slice %[[A]] over [t] : tensor<8x4xf32, #dist.layout<@mesh>> -> tensor<8x4xf32, #dist.layout<@mesh, [{t}, {}]>>
// CHECK-NEXT: %b = collective.slice %[[B]] over [t]
// CHECK-NEXT: %[[C:.*]] = collective.all_gather %z over [t] : tensor<8x4xf32, #dist.layout<@mesh, [{d}, {t}]>> -> tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK-NEXT: %c = collective.slice %[[C]] over [t] : tensor<8x4xf32, #dist.layout<@mesh, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@mesh, [{d, t}, {}]>>

// ONE-COUNT-2: collective.reduce_scatter
// ONE-NOT:     collective.all_to_all
// KIND: error: decompose-collectives: 'all_gather' is no collective that is made of others; these are reduce_scatter, all_to_all
#sum = #dist.layout<@mesh, partial sum {t}>
#rows = #dist.layout<@mesh, [{t}, {}]>
#from = #dist.layout<@mesh, [{d}, {t}]>
#to = #dist.layout<@mesh, [{d, t}, {}]>
device.mesh @mesh on @box <d = 2, t = 2> [0 to 4]
func.func @main(%x: tensor<8x4xf32, #sum>, %y: tensor<8x4xf32, #sum>, %z: tensor<8x4xf32, #from>) -> (tensor<8x4xf32, #rows>, tensor<8x4xf32, #rows>, tensor<8x4xf32, #to>) {
  %a = collective.reduce_scatter %x over [t] {dist.asynchronous, dist.bucket = 1 : i64} : tensor<8x4xf32, #sum> -> tensor<8x4xf32, #rows>
  %b = collective.reduce_scatter %y over [t] {dist.asynchronous, dist.bucket = 1 : i64} : tensor<8x4xf32, #sum> -> tensor<8x4xf32, #rows>
  %c = collective.all_to_all %z over [t] : tensor<8x4xf32, #from> -> tensor<8x4xf32, #to>
  func.return %a, %b, %c : tensor<8x4xf32, #rows>, tensor<8x4xf32, #rows>, tensor<8x4xf32, #to>
}
