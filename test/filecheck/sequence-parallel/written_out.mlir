// RUN: distir-opt %s -p "sequence-parallel" | filecheck %s

// An RMS norm written out in elementary ops: from it on its input is split, beside the
// norm too. What came before is as it was.

// CHECK:      %before = onnx.Neg(%x)
// CHECK-NEXT: %[[X:.*]] = dist.constrain %x {{.*}}[{}, {t}, {}]{{.*}}scope = "norm"
// CHECK-NEXT: %square = onnx.Pow(%[[X]], %two)
// CHECK-NEXT: onnx.ReduceMean(%square, %last)
// CHECK:      onnx.Mul(%[[X]], %inverse)
// CHECK-NEXT: onnx.Add(%[[X]], %normal)
// CHECK-NEXT: onnx.ReduceMean(%sum, %last)

device.mesh @mesh on @box <t = 2> [0 to 2]
func.func @main(%x: tensor<2x8x16xf32> {dist.role = "input", dist.name = "x"}) -> (tensor<2x8x16xf32>, tensor<2x8x1xf32>) {
  %two = onnx.Constant() {value = dense<2.0> : tensor<f32>} : () -> tensor<f32>
  %last = onnx.Constant() {value = dense<-1> : tensor<1xi64>} : () -> tensor<1xi64>
  %before = onnx.Neg(%x) : (tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %square = onnx.Pow(%x, %two) : (tensor<2x8x16xf32>, tensor<f32>) -> tensor<2x8x16xf32>
  %mean = onnx.ReduceMean(%square, %last) {keepdims = 1 : i64, scope = "norm"} : (tensor<2x8x16xf32>, tensor<1xi64>) -> tensor<2x8x1xf32>
  %root = onnx.Sqrt(%mean) : (tensor<2x8x1xf32>) -> tensor<2x8x1xf32>
  %inverse = onnx.Reciprocal(%root) : (tensor<2x8x1xf32>) -> tensor<2x8x1xf32>
  %normal = onnx.Mul(%x, %inverse) : (tensor<2x8x16xf32>, tensor<2x8x1xf32>) -> tensor<2x8x16xf32>
  %sum = onnx.Add(%x, %normal) : (tensor<2x8x16xf32>, tensor<2x8x16xf32>) -> tensor<2x8x16xf32>
  %other = onnx.ReduceMean(%sum, %last) {keepdims = 1 : i64} : (tensor<2x8x16xf32>, tensor<1xi64>) -> tensor<2x8x1xf32>
  func.return %before, %other : tensor<2x8x16xf32>, tensor<2x8x1xf32>
}
