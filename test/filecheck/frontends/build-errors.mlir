// RUN: not distir build gpt --layers 2 --d-model 16 --heads 5 --vocab 32 --batch 2 --seq 8 -o %t.mlir 2>&1 | filecheck %s --check-prefix HEADS

// HEADS: error: 5 heads do not divide the model width 16; choose a number of heads that does

// RUN: not distir build moe --layers 2 --d-model 16 --heads 4 --experts 1 --vocab 32 --batch 2 --seq 8 -o %t.mlir 2>&1 | filecheck %s --check-prefix EXPERTS

// EXPERTS: error: 1 experts: each token goes to 2 of them; build a model with at least 2
