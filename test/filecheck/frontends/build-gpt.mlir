// RUN: distir build gpt --layers 2 --d-model 16 --heads 4 --vocab 32 --batch 2 --seq 8 --dtype f16 -o %t.mlir && distir-opt %t.mlir | filecheck %s
// RUN: distir build gpt --layers 2 --d-model 16 --heads 4 --vocab 32 --batch 2 --seq 8 --dtype f16 --no-fused-attention -o %t.mlir && distir-opt %t.mlir | filecheck %s --check-prefix WRITTEN

// CHECK:      func.func @main(%input_ids: tensor<2x8xi64>
// CHECK-SAME: %transformer.wte.weight: tensor<32x16xf16>
// CHECK-SAME: -> (tensor<2x8x32xf16> {dist.name = "logits"})
// CHECK:        onnx.Gather(%transformer.wte.weight, %input_ids)
// CHECK:        func.call @layer({{.*}}) {scope = "transformer.h.0"}
// CHECK-NEXT:   func.call @layer({{.*}}) {scope = "transformer.h.1"}
// CHECK-NEXT:   onnx.LayerNormalization
// CHECK-NEXT:   onnx.Transpose(%transformer.wte.weight)
// CHECK-NEXT:   onnx.MatMul{{.*}} {scope = "lm_head"}
// CHECK:      func.func private @layer(%hidden: tensor<2x8x16xf16>, %transformer.h.ln_1.weight: tensor<16xf16>
// CHECK:        onnx.Split{{.*}} {axis = 2 : i64, scope = "transformer.h.*.attn"} : (tensor<2x8x48xf16>, tensor<3xi64>)
// CHECK:        onnx.Attention{{.*}} {q_num_heads = 4 : i64, kv_num_heads = 4 : i64, is_causal = 1 : i64
// CHECK:        onnx.Gelu{{.*}} {approximate = "tanh", scope = "transformer.h.*.mlp.act"}

// WRITTEN:      func.func @main(%input_ids: tensor<2x8xi64>
// WRITTEN:        onnx.Range
// WRITTEN:        onnx.Where{{.*}} -> tensor<8x8xf16>
// WRITTEN:      func.func private @layer(%hidden: tensor<2x8x16xf16>, %mask: tensor<8x8xf16>
// WRITTEN:        onnx.Softmax{{.*}} : (tensor<2x4x8x8xf16>)
