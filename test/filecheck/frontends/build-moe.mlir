// RUN: distir build moe --layers 2 --d-model 16 --heads 4 --experts 4 --vocab 32 --batch 2 --seq 8 -o %t.mlir && distir-opt %t.mlir | filecheck %s

// Every other layer has experts. The dispatch tensor [group, token, expert, place] sends each
// token to its two experts, 4 tokens of a sequence at most to each; the other one brings
// their results back.

// CHECK:      func.func @main(%input_ids: tensor<2x8xi64> {dist.role = "input", dist.name = "input_ids"}
// CHECK-SAME: "transformer.h.0.mlp.c_fc.weight"
// CHECK-SAME: tensor<4x16x64xf32> {dist.role = "parameter", dist.name = "transformer.h.1.moe.experts.c_fc.weight"}
// CHECK:      func.call @layer({{.*}}) {scope = "transformer.h.0"}
// CHECK:      func.call @expert_layer({{.*}}) {scope = "transformer.h.1"}
// CHECK:      func.func private @layer(
// CHECK:      func.func private @expert_layer(
// CHECK:      onnx.TopK(%[[GATES:[0-9]+]], {{.*}}) {axis = -1 : i64, scope = "transformer.h.*.moe.gate"}
// CHECK:      onnx.CumSum{{.*}} {exclusive = 1 : i64
// CHECK:      %[[DISPATCH:[0-9]+]] = onnx.Einsum{{.*}} {equation = "gkse,gksc->gsec"
// CHECK-SAME: -> tensor<2x8x4x4xf32>
// CHECK-NEXT: %[[COMBINE:[0-9]+]] = onnx.Einsum{{.*}} {equation = "gkse,gksc->gsec"
// CHECK-NEXT: onnx.Einsum(%{{.*}}, %[[DISPATCH]]) {equation = "gsm,gsec->egcm"
// CHECK-NEXT: onnx.Einsum(%{{.*}}, %transformer.h.moe.experts.c_fc.weight) {equation = "egcm,emh->egch"
// CHECK-NEXT: onnx.Gelu
// CHECK-NEXT: onnx.Einsum(%{{.*}}, %transformer.h.moe.experts.c_proj.weight) {equation = "egch,ehm->egcm"
// CHECK-NEXT: onnx.Einsum(%{{.*}}, %[[COMBINE]]) {equation = "egcm,gsec->gsm"
