// RUN: distir build gpt --layers 2 --d-model 16 --heads 4 --vocab 32 --serve --batch 2 --cache 8 --prompt 4 -o %t.mlir && distir-opt %t.mlir | filecheck %s
// RUN: distir build llama --layers 2 --d-model 16 --heads 4 --kv-heads 2 --vocab 32 --serve --batch 2 --cache 8 -o %t.mlir && distir-opt %t.mlir -p "choose-entry{entry=decode}" | filecheck %s --check-prefix DECODE
// RUN: distir build moe --layers 2 --d-model 16 --heads 4 --experts 4 --vocab 32 --serve --batch 2 --cache 8 -o %t.mlir && distir-opt %t.mlir -p "choose-entry{entry=decode}" | filecheck %s --check-prefix MOE
// RUN: not distir build gpt --layers 2 --d-model 16 --heads 4 --vocab 32 --serve --batch 2 --cache 8 --prompt 9 -o %t.mlir 2>&1 | filecheck %s --check-prefix PROMPT

// Prefill writes the prompts into the cache; results replace its arguments. There is a
// position for each token of the cache.

// CHECK:      func.func @prefill(%input_ids: tensor<2x4xi64> {{.*}}dist.feeds = "tokens"
// CHECK-SAME: %padding: tensor<2xi64> {{.*}}dist.feeds = "padding"
// CHECK-SAME: %cache.0.key: tensor<2x4x8x4xf32> {dist.role = "cache", dist.name = "cache.0.key"}
// CHECK-SAME: %transformer.wpe.weight: tensor<8x16xf32>
// CHECK-SAME: -> (tensor<2x1x32xf32> {dist.name = "logits"}, tensor<2x4x8x4xf32> {dist.name = "cache.0.key", dist.updates = "cache.0.key"}
// CHECK-SAME: attributes {dist.entry = "prefill"}
// CHECK:      onnx.Slice{{.*}} -> tensor<2x1x16xf32>
// CHECK:      func.func private @layer(
// CHECK:        %[[KEYS:[0-9]+]] = onnx.TensorScatter(%cache.key, %[[OWN:[0-9]+]], %places)
// CHECK:        onnx.Attention(%{{[0-9]+}}, %[[OWN]], %{{[0-9]+}}, %mask)
// CHECK:      func.func @decode(%input_ids: tensor<2x1xi64>
// CHECK-SAME: %positions: tensor<2xi64> {{.*}}dist.feeds = "positions", dist.limit = 8 : i64
// CHECK-SAME: attributes {dist.entry = "decode"}
// CHECK:        func.call @layer_1(

// Decode reads the cache with its own token in it. Queries share the heads of the cache.

// DECODE:      func.func @main(
// DECODE-SAME: %cache.0.key: tensor<2x2x8x4xf32>
// DECODE:      func.func private @{{layer[_0-9]*}}(
// DECODE:        %[[KEYS:[0-9]+]] = onnx.TensorScatter(%cache.key,
// DECODE-NEXT:   %[[VALUES:[0-9]+]] = onnx.TensorScatter(%cache.value,
// DECODE-NEXT:   onnx.Attention(%{{[0-9]+}}, %[[KEYS]], %[[VALUES]], %mask)
// DECODE-SAME:   (tensor<2x4x1x4xf32>, tensor<2x2x8x4xf32>, tensor<2x2x8x4xf32>, tensor<2x1x1x8xf32>)

// Experts take all tokens that choose them.

// MOE:     func.func private @{{expert_layer[_0-9]*}}(
// MOE-NOT: onnx.CumSum
// MOE:     train.grouped_product %{{.*}}, %transformer.h.moe.experts.c_fc.weight {

// PROMPT: error: --prompt 9 is longer than the 8 tokens of the cache (--cache); give a shorter one, or a larger cache

// With pages, a table gives the pages of a pool to sequences. Decode attends to them where
// they are.

// RUN: distir build llama --layers 2 --d-model 16 --heads 4 --kv-heads 2 --vocab 32 --serve --batch 2 --cache 8 --page-size 3 --pages 5 -o %t.mlir && distir-opt %t.mlir | filecheck %s --check-prefix PAGES
// RUN: not distir build llama --layers 2 --d-model 16 --heads 4 --vocab 32 --serve --batch 2 --cache 8 --page-size 3 --pages 7 -o %t.mlir 2>&1 | filecheck %s --check-prefix MOST
// RUN: not distir build llama --layers 2 --d-model 16 --heads 4 --vocab 32 --serve --batch 2 --cache 8 --pools 2 -o %t.mlir 2>&1 | filecheck %s --check-prefix ALONE
// RUN: not distir build llama --layers 2 --d-model 16 --heads 4 --vocab 32 --serve --batch 3 --cache 8 --page-size 4 --pools 2 -o %t.mlir 2>&1 | filecheck %s --check-prefix POOLS

// PAGES:      func.func @prefill(
// PAGES-SAME: %pages: tensor<2x3xi64> {dist.role = "input", dist.name = "pages", dist.feeds = "pages", dist.pages = array<i64: 1, 5, 3>}
// PAGES-SAME: %cache.0.key: tensor<1x5x2x3x4xf32> {dist.role = "cache"
// PAGES:        train.paged_write %cache.key, %[[OWN:[0-9]+]], %pages, %places
// PAGES:        onnx.Attention(%{{[0-9]+}}, %[[OWN]],
// PAGES:      func.func @decode(
// PAGES:        %[[KEYS:[0-9]+]] = train.paged_write %cache.key,
// PAGES-NEXT:   %[[VALUES:[0-9]+]] = train.paged_write %cache.value,
// PAGES-NEXT:   train.paged_attention %{{[0-9]+}}, %[[KEYS]], %[[VALUES]], %pages, %mask
// PAGES-SAME:   tensor<2x1x1x9xf32>

// MOST: error: --pages 7: a pool is shared by 2 sequences of up to 8 tokens, and can have from 2 to 6 pages of 3 tokens
// ALONE: error: --pools is of use with --page-size only; add it
// POOLS: error: --batch 3 sequences cannot be divided over --pools 2; give a divisor of 3
