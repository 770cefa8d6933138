// RUN: distir-opt %s -p "data-parallel" | filecheck %s
// RUN: not distir-opt %s -p "data-parallel{axis=c}" 2>&1 | filecheck %s --check-prefix=AXIS

// The batch of 8 is split over "d"; the table of positions has another first
// dimension and stays whole, and so do parameters.

device.mesh @mesh on @box <d = 2> [0 to 2]

// CHECK:      %x: tensor<8x4xf32> {dist.role = "input", dist.layout = #dist.layout<@mesh, [{d}, {}]>}
// CHECK-SAME: %positions: tensor<1x4xi64> {dist.role = "input"}
// CHECK-SAME: %labels: tensor<8xi64> {dist.role = "label", dist.layout = #dist.layout<@mesh, [{d}]>}
// CHECK-SAME: %w: tensor<8x4xf32> {dist.role = "parameter"}
func.func @main(
  %x: tensor<8x4xf32> {dist.role = "input"},
  %positions: tensor<1x4xi64> {dist.role = "input"},
  %labels: tensor<8xi64> {dist.role = "label"},
  %w: tensor<8x4xf32> {dist.role = "parameter"}
) -> tensor<8x4xf32> {
  func.return %x : tensor<8x4xf32>
}

// AXIS: error: no mesh has an axis 'c' (meshes of this module: @mesh {'d': 2})
