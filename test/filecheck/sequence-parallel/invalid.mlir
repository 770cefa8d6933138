// RUN: not distir-opt %s -p "sequence-parallel{axis=d}" 2>&1 | filecheck %s --check-prefix=AXIS
// RUN: not distir-opt %s -p "sequence-parallel" 2>&1 | filecheck %s --check-prefix=UNEVEN

// AXIS: error: no mesh has an axis 'd' (meshes of this module: @mesh {'t': 3})
// UNEVEN: error: sequence-parallel: {{.*}}onnx.LayerNormalization{{.*}}layer.norm{{.*}} works on a sequence of 8, which axis 't' of size 3 does not divide

device.mesh @mesh on @box <t = 3> [0 to 3]
func.func @main(%x: tensor<2x8x6xf32> {dist.role = "input", dist.name = "x"}, %scale: tensor<6xf32> {dist.role = "parameter", dist.name = "scale"}, %bias: tensor<6xf32> {dist.role = "parameter", dist.name = "bias"}) -> tensor<2x8x6xf32> {
  %n = onnx.LayerNormalization(%x, %scale, %bias) {scope = "layer.norm"} : (tensor<2x8x6xf32>, tensor<6xf32>, tensor<6xf32>) -> tensor<2x8x6xf32>
  func.return %n : tensor<2x8x6xf32>
}
