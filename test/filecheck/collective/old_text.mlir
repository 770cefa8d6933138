// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s

// Programs that older versions wrote: axes in quotes, lists of devices without angle
// brackets, and collectives of one rank under the names of those of distributed programs.

// CHECK: device.mesh @m on @c <d = 2, t = 2> [0 to 4]
device.mesh @m on @c <"d" = 2, "t" = 2> [0 to 4]
// CHECK: device.mesh @n on @c <t = 2> [4, 6]
"device.mesh"() <{sym_name = "n", cluster = @c, axes = #device.axes<"t" = 2>, devices = #device.ids[4, 6]}> : () -> ()

// CHECK: func.func @distributed(%x: tensor<8x4xf32, #dist.layout<@m, [{}, {d}], partial sum {t}>>
func.func @distributed(%x: tensor<8x4xf32, #dist.layout<@m, [{}, {"d"}], partial sum {"t"}>>) {
  // CHECK-NEXT: collective.all_reduce %x over [t] : tensor
  %y = collective.all_reduce %x over ["t"] : tensor<8x4xf32, #dist.layout<@m, [{}, {d}], partial sum {t}>> -> tensor<8x4xf32, #dist.layout<@m, [{}, {d}]>>
  func.return
}

// CHECK: func.func @rank(%x: tensor<8x4xf32>)
func.func @rank(%x: tensor<8x4xf32>) {
  // CHECK-NEXT: %c = collective.coordinate over [d, t] {index = 3 : i64} : tensor<i64>
  %c = collective.coordinate over ["d", "t"] {index = 3 : i64} : tensor<i64>
  // CHECK-NEXT: %y = collective.rank.all_reduce %x over [t] {mesh = @m, group = array<i64: 2, 3>, reduction = "sum"} : tensor<8x4xf32> -> tensor<8x4xf32>
  %y = collective.all_reduce %x over ["t"] {mesh = @m, group = array<i64: 2, 3>, reduction = "sum"} : tensor<8x4xf32> -> tensor<8x4xf32>
  // CHECK-NEXT: %z = collective.rank.all_gather %y over [t] {dim = 0 : i64, group = array<i64: 2, 3>} : tensor<8x4xf32> -> tensor<16x4xf32>
  %z = "collective.all_gather"(%y) <{axes = ["t"], dim = 0 : i64, group = array<i64: 2, 3>}> : (tensor<8x4xf32>) -> tensor<16x4xf32>
  func.return
}
