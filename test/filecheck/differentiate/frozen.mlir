// RUN: distir-opt %s -p "differentiate{loss=mse optimizer=sgd}" | filecheck %s

// A frozen parameter stays an argument, but has no gradient and no update; neither has
// one that the loss depends on only through a value where gradients stop.
// CHECK:       func.func @main({{.*}}dist.name = "frozen", dist.frozen}
// CHECK-SAME:  -> (tensor<f32> {dist.role = "loss", dist.name = "loss"}, tensor<4x4xf32> {dist.name = "w", dist.updates = "w"}) {
// CHECK:       onnx.Identity(%c) {dist.stop_gradient}
// CHECK:       train.sgd %w,
// CHECK-NOT:   train.sgd
func.func @main(%x: tensor<8x4xf32> {dist.role = "input", dist.name = "x"},
                %w: tensor<4x4xf32> {dist.role = "parameter", dist.name = "w"},
                %frozen: tensor<4x4xf32> {dist.role = "parameter", dist.name = "frozen", dist.frozen},
                %stopped: tensor<4x4xf32> {dist.role = "parameter", dist.name = "stopped"}) -> (tensor<8x4xf32> {dist.name = "y"}) {
  %a = onnx.MatMul(%x, %w) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %b = onnx.MatMul(%a, %frozen) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %c = onnx.MatMul(%x, %stopped) : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %d = onnx.Identity(%c) {dist.stop_gradient} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = onnx.Add(%b, %d) : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %y : tensor<8x4xf32>
}
