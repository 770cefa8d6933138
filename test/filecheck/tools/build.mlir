// A model of any size, distributed and simulated without ever having weights.
// RUN: rm -rf %t && mkdir -p %t
// RUN: distir build gpt --layers 4 --d-model 1024 --heads 16 --vocab 32000 --batch 8 --seq 512 --dtype f16 -o %t/gpt.mlir
// RUN: distir distribute %t/gpt.mlir --cluster dgx-h100 -d 2 -t 4 -o %t/dist.mlir
// RUN: distir simulate %t/dist.mlir --json %t/out.json --trace %t/trace.json | filecheck %s
// RUN: distir-opt %t/dist.mlir -p verify-distribution | filecheck %s --check-prefix PROGRAM

// CHECK: step time {{.*}} samples/s, {{[0-9]+}} ops on 8 devices of @
// CHECK: device {{ *}} peak memory
// CHECK: {{^}}7 {{.*}} of 80 GB

// PROGRAM: device.mesh @mesh on {{.*}} <d = 2, t = 4> [0 to 8]
// PROGRAM: collective.all_reduce
