// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

#whole = #dist.layout<@m>
#rows = #dist.layout<@m, [{t}, {}]>
#columns = #dist.layout<@m, [{}, {t}]>
#sums = #dist.layout<@m, partial sum {t}>
#root = #dist.layout<@one>

// CHECK-LABEL: func.func @distributed
func.func @distributed(%w: tensor<8x4xf32, #whole>, %r: tensor<8x4xf32, #rows>, %s: tensor<8x4xf32, #sums>) {
  // CHECK: %0 = collective.all_reduce %s over [t] : tensor<8x4xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8x4xf32, #dist.layout<@m>>
  // GENERIC: "collective.all_reduce"(%s) <{axes = ["t"]}> : (tensor<8x4xf32, #dist.layout<@m, partial sum {t}>>) -> tensor<8x4xf32, #dist.layout<@m>>
  %0 = collective.all_reduce %s over [t] : tensor<8x4xf32, #sums> -> tensor<8x4xf32, #whole>
  // CHECK-NEXT: %1 = collective.all_gather %r over [t] {scope = "h.0"} : tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x4xf32, #dist.layout<@m>>
  // GENERIC-NEXT: "collective.all_gather"(%r) <{axes = ["t"]}> {scope = "h.0"}
  %1 = collective.all_gather %r over [t] {scope = "h.0"} : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #whole>
  // CHECK-NEXT: %2 = collective.reduce_scatter %s over [t] : tensor<8x4xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>
  %2 = collective.reduce_scatter %s over [t] : tensor<8x4xf32, #sums> -> tensor<8x4xf32, #rows>
  // CHECK-NEXT: %3 = collective.all_to_all %r over [t] : tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x4xf32, #dist.layout<@m, [{}, {t}]>>
  %3 = collective.all_to_all %r over [t] : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #columns>
  // CHECK-NEXT: %4 = collective.slice %w over [t] : tensor<8x4xf32, #dist.layout<@m>> -> tensor<8x4xf32, #dist.layout<@m, [{t:2}, {}]>>
  %4 = collective.slice %w over [t] : tensor<8x4xf32, #whole> -> tensor<8x4xf32, #dist.layout<@m, [{t:2}, {}]>>
  // CHECK-NEXT: %5 = collective.permute %r over [t] {shift = 1 : i64} : tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>
  // GENERIC: "collective.permute"(%r) <{axes = ["t"], shift = 1 : i64}>
  %5 = collective.permute %r over [t] {shift = 1 : i64} : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #rows>
  func.return
}

// CHECK-LABEL: func.func @several_axes
func.func @several_axes(%x: tensor<8x4xf32, #dist.layout<@m, [{d, t}, {}], partial sum {c}>>) {
  // CHECK-NEXT: %0 = collective.all_gather %x over [d, t]
  %0 = collective.all_gather %x over [d, t] : tensor<8x4xf32, #dist.layout<@m, [{d, t}, {}], partial sum {c}>> -> tensor<8x4xf32, #dist.layout<@m, partial sum {c}>>
  // The innermost axis alone may be gathered too.
  // CHECK-NEXT: %1 = collective.all_gather %x over [t]
  %1 = collective.all_gather %x over [t] : tensor<8x4xf32, #dist.layout<@m, [{d, t}, {}], partial sum {c}>> -> tensor<8x4xf32, #dist.layout<@m, [{d}, {}], partial sum {c}>>
  func.return
}

// CHECK-LABEL: func.func @rooted
func.func @rooted(%w: tensor<8x4xf32, #root>, %r: tensor<8x4xf32, #rows>, %s: tensor<8x4xf32, #sums>) {
  // CHECK: %0 = collective.broadcast %w over [t] : tensor<8x4xf32, #dist.layout<@one>> -> tensor<8x4xf32, #dist.layout<@m>>
  %0 = collective.broadcast %w over [t] : tensor<8x4xf32, #root> -> tensor<8x4xf32, #whole>
  // CHECK-NEXT: %1 = collective.scatter %w over [t] : tensor<8x4xf32, #dist.layout<@one>> -> tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>
  %1 = collective.scatter %w over [t] : tensor<8x4xf32, #root> -> tensor<8x4xf32, #rows>
  // CHECK-NEXT: %2 = collective.reduce %s over [t] : tensor<8x4xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8x4xf32, #dist.layout<@one>>
  %2 = collective.reduce %s over [t] : tensor<8x4xf32, #sums> -> tensor<8x4xf32, #root>
  // CHECK-NEXT: %3 = collective.gather %r over [t] : tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x4xf32, #dist.layout<@one>>
  %3 = collective.gather %r over [t] : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #root>
  func.return
}

// CHECK-LABEL: func.func @per_rank
func.func @per_rank(%x: tensor<4x4xf32>) {
  // CHECK-NEXT: %0 = collective.coordinate over [d, t] {index = 3 : i64} : tensor<i64>
  %0 = collective.coordinate over [d, t] {index = 3 : i64} : tensor<i64>
  // CHECK-NEXT: %1 = collective.rank.all_reduce %x over [t] {group = array<i64: 0, 1>, reduction = "sum"} : tensor<4x4xf32> -> tensor<4x4xf32>
  %1 = collective.rank.all_reduce %x over [t] {group = array<i64: 0, 1>, reduction = "sum"} : tensor<4x4xf32> -> tensor<4x4xf32>
  // CHECK-NEXT: %2 = collective.rank.all_gather %x over [t] {dim = 0 : i64, group = array<i64: 0, 1>, run = 2 : i64} : tensor<4x4xf32> -> tensor<8x4xf32>
  %2 = collective.rank.all_gather %x over [t] {dim = 0 : i64, group = array<i64: 0, 1>, run = 2 : i64} : tensor<4x4xf32> -> tensor<8x4xf32>
  // CHECK-NEXT: collective.send %x to 2 : tensor<4x4xf32>
  // GENERIC: "collective.send"(%x) <{peer = 2 : i64}> : (tensor<4x4xf32>) -> ()
  collective.send %x to 2 : tensor<4x4xf32>
  // CHECK-NEXT: %3 = collective.recv from 2 : tensor<4x4xf32>
  // GENERIC-NEXT: "collective.recv"() <{peer = 2 : i64}> : () -> tensor<4x4xf32>
  %3 = collective.recv from 2 : tensor<4x4xf32>
  // CHECK-NEXT: collective.send %x to 2 {dist.asynchronous} : tensor<4x4xf32>
  collective.send %x to 2 {dist.asynchronous} : tensor<4x4xf32>
  // CHECK-NEXT: %4 = collective.recv from 2 {dist.asynchronous} : tensor<4x4xf32>
  // GENERIC: "collective.recv"() <{peer = 2 : i64}> {dist.asynchronous} : () -> tensor<4x4xf32>
  %4 = collective.recv from 2 {dist.asynchronous} : tensor<4x4xf32>
  // CHECK-NEXT: %5 = collective.wait %4 : tensor<4x4xf32>
  // GENERIC-NEXT: "collective.wait"(%4) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = collective.wait %4 : tensor<4x4xf32>
  func.return
}
