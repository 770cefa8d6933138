// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | distir-opt | filecheck %s
// RUN: distir-opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

// A layout may be given a name; it is printed in full.
#rows = #dist.layout<@A, [{d}, {}]>

// CHECK-LABEL: func.func @change
// CHECK-SAME: %x: tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>>
func.func @change(%x: tensor<8x4xf32, #rows>) {
  // CHECK-NEXT: %y = dist.reshard %x : tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@A>>
  // GENERIC: "dist.reshard"(%x) : (tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>>) -> tensor<8x4xf32, #dist.layout<@A>>
  %y = dist.reshard %x : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #dist.layout<@A>>
  // CHECK-NEXT: %z = dist.send %x {scope = "h.0"} : tensor<8x4xf32, #dist.layout<@A, [{d}, {}]>> -> tensor<8x4xf32, #dist.layout<@B, [{d}, {}]>>
  // GENERIC-NEXT: "dist.send"(%x) {scope = "h.0"}
  %z = dist.send %x {scope = "h.0"} : tensor<8x4xf32, #rows> -> tensor<8x4xf32, #dist.layout<@B, [{d}, {}]>>
  func.return
}

// CHECK-LABEL: func.func @request
func.func @request(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK-NEXT: %y = dist.constrain %x to <@A, [{}, {t}]> : tensor<8x4xf32> -> tensor<8x4xf32>
  // GENERIC: "dist.constrain"(%x) <{layout = #dist.layout<@A, [{}, {t}]>}>
  %y = dist.constrain %x to <@A, [{}, {t}]> : tensor<8x4xf32> -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
