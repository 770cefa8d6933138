// RUN: not distir-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK: a float in hexadecimal digits has its sign in these

func.func @main() -> tensor<f32> {
  %c = onnx.Constant() {value = dense<-0x7F800000> : tensor<f32>} : () -> tensor<f32>
  func.return %c : tensor<f32>
}
