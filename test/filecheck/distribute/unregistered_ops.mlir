// RUN: not distir-opt %s 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: distir-opt %s --allow-unregistered-dialect -p "distribute{d=2 t=2 cluster=cpu}" | filecheck %s
// RUN: distir-opt %s --allow-unregistered-dialect -p "distribute{d=2 t=2 cluster=cpu}" | distir-opt --allow-unregistered-dialect -p verify-distribution | filecheck %s

// UNKNOWN: Operation other.constant is not registered; no installed package has the dialect `other`

// CHECK: "other.constant"() {value = dense<0xFF800000> : tensor<8x16xf32, #dist.layout<@mesh>>} : () -> tensor<8x16xf32, #dist.layout<@mesh>>
// CHECK: "other.add"
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %c = "other.constant"() {value = dense<0xFF800000> : tensor<8x16xf32>} : () -> tensor<8x16xf32>
  %y = "other.add"(%x, %c) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
