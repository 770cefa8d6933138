// RUN: distir-opt %s --print-debuginfo | distir-opt --print-debuginfo | filecheck %s
// RUN: distir-opt %s -p "distribute{t=2 cluster=cpu}" --print-debuginfo | filecheck %s --check-prefix SPLIT
// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd},distribute{d=2 cluster=cpu},project{rank=1}" --print-debuginfo | filecheck %s --check-prefix RANK
// RUN: not distir-opt %s -p "distribute{t=2 cluster=cpu},project{rank=0},project{rank=0}" 2>&1 | filecheck %s --check-prefix AGAIN

// Every op keeps the line of the user's code that it came from, and what a pass makes for an op
// gets its line. Messages name it.

// CHECK:      %h = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32> loc("model.py":12:3)
// CHECK-NEXT: %r = onnx.Relu(%h) {{.*}} loc("relu"("model.py":13:3))
// CHECK-NEXT: %y = onnx.MatMul(%r, %v) {{.*}} loc("model.py":14:3)
// CHECK-NEXT: %z = onnx.Relu(%y) {{.*}} loc("model.py":15:3)
// CHECK-NEXT: func.return %z : tensor<8x16xf32> loc("model.py":16:3)
// CHECK-NEXT: } loc("model.py":10:1)

// SPLIT:      %h = onnx.MatMul{{.*}} loc("model.py":12:3)
// SPLIT:      collective.all_reduce %y {{.*}} loc("model.py":14:3)
// SPLIT-NEXT: onnx.Relu{{.*}} loc("model.py":15:3)
// SPLIT-NEXT: func.return {{.*}} loc("model.py":16:3)
// SPLIT-NEXT: } loc("model.py":10:1)

// RANK:       func.func @main(%x: tensor<4x16xf32>
// RANK:       onnx.MatMul(%x, %w) {{.*}} loc("model.py":12:3)
// RANK:       train.relu_grad {{.*}} loc("model.py":15:3)
// RANK:       train.relu_grad {{.*}} loc("relu"("model.py":13:3))
// RANK:       onnx.Gemm{{.*}} loc("model.py":12:3)
// RANK-NOT:   train.{{.*}} loc(unknown)
// RANK:       } loc("model.py":10:1)

// AGAIN:      error: collective.rank.all_reduce (at model.py:14) belongs to the program of one rank already
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"}, %v: tensor<32x16xf32> {dist.role = "parameter", dist.name = "v"}) -> tensor<8x16xf32> {
  %h = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32> loc("model.py":12:3)
  %r = onnx.Relu(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32> loc("relu"("model.py":13:3))
  %y = onnx.MatMul(%r, %v) : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32> loc("model.py":14:3)
  %z = onnx.Relu(%y) : (tensor<8x16xf32>) -> tensor<8x16xf32> loc("model.py":15:3)
  func.return %z : tensor<8x16xf32> loc("model.py":16:3)
} loc("model.py":10:1)
