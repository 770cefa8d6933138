// RUN: distir-opt %s -p "partition{lower=false}" | filecheck %s
// RUN: sed 's/builtin.module attributes {"dist.separate_copies"}/builtin.module/' %s | distir-opt -p "partition{lower=false}" | filecheck %s --check-prefix=ONE

// Three uses of %h want the whole of it. Where copies are separate, each op gathers it for
// itself, once even if it takes it twice, and no copy lives until a later op; else all use
// the first. In both cases the module asks for nothing any more.
//
// Of the three times that %h is a result, each has its layout by itself: separate copies are made from
// the value itself, not from each other.

builtin.module attributes {"dist.separate_copies"} {
device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK-NOT: dist.separate_copies
// CHECK: %[[A:.*]] = dist.reshard %h
// CHECK-NEXT: %a = onnx.Mul(%[[A]], %[[A]])
// CHECK-NEXT: %[[B:.*]] = dist.reshard %h
// CHECK-NEXT: %b = onnx.Add(%[[B]], %a)
// CHECK-NEXT: %[[C:.*]] = dist.reshard %h
// CHECK-NEXT: %[[D:.*]] = dist.reshard %h
// CHECK-NEXT: %[[E:.*]] = dist.reshard %h
// CHECK-NEXT: func.return %b, %[[C]], %[[D]], %[[E]]
// ONE: %[[A:.*]] = dist.reshard %h
// ONE-NEXT: %a = onnx.Mul(%[[A]], %[[A]])
// ONE-NEXT: %b = onnx.Add(%[[A]], %a)
// ONE-NEXT: %[[E:.*]] = dist.reshard %[[A]]
// ONE-NEXT: func.return %b, %[[A]], %[[A]], %[[E]]
func.func @main(%x: tensor<4x8xf32> {dist.layout = #dist.layout<@mesh, [{d}, {}]>}) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %h = onnx.Relu(%x) {dist.operand_layouts = [#dist.layout<@mesh, [{d}, {}]>], dist.result_layouts = [#dist.layout<@mesh, [{d}, {}]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %a = onnx.Mul(%h, %h) {dist.operand_layouts = [#dist.layout<@mesh>, #dist.layout<@mesh>], dist.result_layouts = [#dist.layout<@mesh>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %b = onnx.Add(%h, %a) {dist.operand_layouts = [#dist.layout<@mesh>, #dist.layout<@mesh>], dist.result_layouts = [#dist.layout<@mesh>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  func.return {dist.operand_layouts = [#dist.layout<@mesh>, #dist.layout<@mesh>, #dist.layout<@mesh>, #dist.layout<@mesh, [{}, {d}]>], dist.result_layouts = []} %b, %h, %h, %h : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
}
