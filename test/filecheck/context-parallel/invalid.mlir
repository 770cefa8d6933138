// RUN: not distir-opt %s -p 'add-mesh{axes="c=3"},context-parallel' 2>&1 | filecheck %s --check-prefix=UNEVEN
// RUN: not distir-opt %s -p 'add-mesh{axes="c=2"},context-parallel' 2>&1 | filecheck %s --check-prefix=NONE
// RUN: not distir-opt %s -p "distribute{context_order=cyclic}" 2>&1 | filecheck %s --check-prefix=ALONE

// UNEVEN: error: context-parallel: the sequence of 16 (dimension 1 of input 'x') cannot be split evenly over axis 'c' of size 3; choose a length that is a multiple of it, or another -c
// NONE:   error: context-parallel: the program has no attention over a sequence of 16 (dimension 1 of input 'x') to split over axis 'c'
// ALONE:  error: distribute: context=gather and context_order=cyclic say how sequences are split over the context-parallel devices, but c is 1; choose a larger -c

func.func @main(%x: tensor<2x16x8xf32> {dist.role = "input", dist.name = "x"}) -> tensor<2x16x8xf32> {
  func.return %x : tensor<2x16x8xf32>
}
