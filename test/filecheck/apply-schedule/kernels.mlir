// RUN: distir-opt %s -p apply-schedule | filecheck %s
// RUN: not distir-opt %s -p 'apply-schedule{entry=reads}' 2>&1 | filecheck %s --check-prefix=READS
// RUN: not distir-opt %s -p 'apply-schedule{entry=rule}' 2>&1 | filecheck %s --check-prefix=RULE

// A sum over k leaves terms of a sum where k is split. The group is the kernel's reference.
// CHECK: kernel.call @mine(%x, %w) {scope = "up", rule = "[a, b], [b, c] -> [a, c] keep b", flops = "32*a*c"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
// CHECK-NOT: onnx.Relu
// CHECK: kernel.def @mine attributes {implementation = "my_kernels:linear_relu", rule = "[a, b], [b, c] -> [a, c] keep b", tolerance = 1.000000e-02 : f64, flops = "32*a*c"} {
// CHECK-NEXT: ^bb0(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>):
// CHECK-NEXT: onnx.MatMul(%x, %w)
// CHECK-NEXT: onnx.Relu(
// CHECK-NEXT: kernel.result

// READS: error: @reads, op 2 (schedule.kernel): kernel 'mine' (my_kernels:relu): onnx.MatMul %p (in up) reads a value that the pattern has no argument for; find a pattern that names it, so that the kernel is given it
// RULE: error: @rule, op 2 (schedule.kernel): kernel 'mine' (my_kernels:linear_relu): kernel @mine: its rule lets 'b' be split, but the reference cannot work on parts of it without communication: onnx.Relu %r (in up): operand 0 has layout {{.*}}; keep 'b' whole (`keep='b'`)

func.func @main(%x: tensor<8x16xf32> {dist.role = "input", dist.name = "x"},
                %w: tensor<16x32xf32> {dist.role = "parameter", dist.name = "w"}) -> tensor<8x32xf32> {
  %p = onnx.MatMul(%x, %w) {scope = "up"} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %r = onnx.Relu(%p) {scope = "up"} : (tensor<8x32xf32>) -> tensor<8x32xf32>
  func.return %r : tensor<8x32xf32>
}
transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value, %w: !transform.any_value):
    %1 = schedule.node "onnx.MatMul"(%x, %w)
    %2 = schedule.node "onnx.Relu"(%1)
    schedule.found %2
  }
  schedule.kernel %0 {symbol = "mine", implementation = "my_kernels:linear_relu", tolerance = 0.01 : f64}
  transform.yield
}
transform.named_sequence @rule(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value, %w: !transform.any_value):
    %1 = schedule.node "onnx.MatMul"(%x, %w)
    %2 = schedule.node "onnx.Relu"(%1)
    schedule.found %2
  }
  schedule.kernel %0 {symbol = "mine", implementation = "my_kernels:linear_relu", rule = "[a, b], [b, c] -> [a, c]"}
  transform.yield
}
transform.named_sequence @reads(%model: !transform.any_op) {
  %0 = schedule.find in %model {
  ^bb0(%x: !transform.any_value):
    %2 = schedule.node "onnx.MatMul"(%x)
    schedule.found %2
  }
  schedule.kernel %0 {symbol = "mine", implementation = "my_kernels:relu"}
  transform.yield
}
