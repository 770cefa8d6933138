// RUN: not distir-opt %s -p "propagate-sharding" 2>&1 | filecheck %s

// 12 heads cannot be split over 8 devices: an explicit request is an error.

device.mesh @mesh on @box <t = 8> [0 to 8]

// CHECK: error: dist.constrain %h (in attn): dimension 1 of size 12 cannot be split evenly over axis 't' of size 8; uneven splits are not supported
func.func @main(%q: tensor<2x12x16x64xf32>) -> tensor<2x12x16x64xf32> {
  %h = dist.constrain %q to <@mesh, [{}, {t}, {}, {}]> {scope = "attn"} : tensor<2x12x16x64xf32> -> tensor<2x12x16x64xf32>
  func.return %h : tensor<2x12x16x64xf32>
}
