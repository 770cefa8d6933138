// RUN: distir-opt %s -p overlap-communication | filecheck %s

// Rows stay whole where they are an odd number on each device, where only a sum takes them, and
// where they are the matrix of a product; a product of a matrix that is computed behind the first
// use of the rows takes them whole.

device.cluster @pair {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 8.0 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 4.0 : f64, latency = 0.0 : f64}
}
device.mesh @mesh on @pair <t = 2> [0 to 2]
#W = #dist.layout<@mesh>
#S = #dist.layout<@mesh, [{t}, {}]>
#C = #dist.layout<@mesh, [{}, {t}]>

// CHECK-LABEL: func.func @main
// CHECK-NOT:   onnx.Split
func.func @main(%odd: tensor<6x2xf32, #S> {dist.role = "input", dist.name = "odd"}, %x: tensor<8x2xf32, #S> {dist.role = "input", dist.name = "x"}, %y: tensor<4x8xf32, #W> {dist.role = "input", dist.name = "y"}, %w: tensor<2x4xf32, #C> {dist.role = "parameter", dist.name = "w"}) -> (tensor<6x4xf32, #C>, tensor<4x2xf32, #W>, tensor<8x4xf32, #C>) {
  %0 = collective.all_gather %odd over [t] : tensor<6x2xf32, #S> -> tensor<6x2xf32, #W>
  %1 = onnx.MatMul(%0, %w) : (tensor<6x2xf32, #W>, tensor<2x4xf32, #C>) -> tensor<6x4xf32, #C>
  %2 = collective.all_gather %x over [t] : tensor<8x2xf32, #S> -> tensor<8x2xf32, #W>
  %3 = onnx.MatMul(%y, %2) : (tensor<4x8xf32, #W>, tensor<8x2xf32, #W>) -> tensor<4x2xf32, #W>
  %4 = onnx.Exp(%w) : (tensor<2x4xf32, #C>) -> tensor<2x4xf32, #C>
  %5 = onnx.MatMul(%2, %4) : (tensor<8x2xf32, #W>, tensor<2x4xf32, #C>) -> tensor<8x4xf32, #C>
  func.return %1, %3, %5 : tensor<6x4xf32, #C>, tensor<4x2xf32, #W>, tensor<8x4xf32, #C>
}
