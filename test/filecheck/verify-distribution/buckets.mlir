// RUN: not distir-opt %s -p verify-distribution 2>&1 | filecheck %s
// RUN: sed -e "s/{dist.bucket = 0 : i64}/{dist.joined}/" %s > %t.mlir
// RUN: not distir-opt %t.mlir 2>&1 | filecheck %s --check-prefix FORMER

// FORMER: collective.all_reduce %x in @main has dist.joined, which is no attribute any more; remove it and run `distir-opt -p bucket-collectives`

device.mesh @mesh on @pair <d = 2> [0 to 2]
#W = #dist.layout<@mesh>
#P = #dist.layout<@mesh, [], partial sum {d}>

// CHECK: error: @main: collective.all_reduce %z: has dist.bucket = 0 : i64, as collective.all_reduce %x has, but onnx.Neg is between them; give it another number or remove dist.bucket
func.func @main(%a: tensor<4xf32, #P>, %b: tensor<4xf32, #P>) -> (tensor<4xf32, #W>, tensor<4xf32, #W>) {
  %x = collective.all_reduce %a over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  %y = onnx.Neg(%x) : (tensor<4xf32, #W>) -> tensor<4xf32, #W>
  %z = collective.all_reduce %b over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  func.return %y, %z : tensor<4xf32, #W>, tensor<4xf32, #W>
}
