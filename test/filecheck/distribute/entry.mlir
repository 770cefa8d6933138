// RUN: distir-opt %s -p "distribute{d=2 cluster=cpu entry=train}" | filecheck %s
// RUN: distir distribute %s -o %t.mlir -d 2 --cluster cpu --entry eval && filecheck %s --check-prefix EVAL < %t.mlir
// RUN: not distir-opt %s -p "distribute{d=2 cluster=cpu entry=trian}" 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: not distir distribute %s -o %t.mlir -d 2 --cluster cpu 2>&1 | filecheck %s --check-prefix NONE

// The function that is chosen becomes @main; the other one stays as it is.

// CHECK:      func.func @main(%x: tensor<8x16xf32, #dist.layout<@mesh, [{d}, {}]>>
// CHECK:      func.func @eval(%x: tensor<8x16xf32>) -> tensor<8x16xf32>
// EVAL-DAG:   func.func @main(%x: !f32_8d_16
// EVAL-DAG:   func.func @train(%x: tensor<8x16xf32>
// UNKNOWN:    error: the module has no public function 'trian'; did you mean 'train'? it has train, eval
// NONE:       error: the module has 2 functions and none is called @main; {{.*}} --entry NAME

func.func @train(%x: tensor<8x16xf32> {dist.role = "input"}) -> tensor<8x16xf32> {
  %y = onnx.Relu(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}

func.func @eval(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %y = onnx.Tanh(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
