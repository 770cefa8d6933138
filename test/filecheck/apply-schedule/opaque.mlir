// RUN: distir-opt %s -p apply-schedule | filecheck %s
// RUN: not distir-opt %s -p "apply-schedule{entry=traced}" 2>&1 | filecheck %s --check-prefix=TRACED

// The import has made the module opaque; one that was traced is refused.
// CHECK: train.opaque %x {{.*}}scope = "moe"
// CHECK-NOT: schedule.opaque
// TRACED: error: @traced, op 2 (schedule.opaque): 'act' was traced when the model was imported, so that it is too late to make it opaque; give the schedule to distir.parallelize, or call distir.opaque in the model

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %y = train.opaque %x {module = "moe", rule = "[b, 4] -> [b, 4]", scope = "moe"} : tensor<8x4xf32> -> tensor<8x4xf32>
  %z = onnx.Relu(%y) {scope = "act"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  func.return %z : tensor<8x4xf32>
}

transform.named_sequence @schedule(%model: !transform.any_op) {
  %0 = schedule.match "moe" in %model
  schedule.opaque %0 {rule = "b d -> b d", keep = "d"}
  transform.yield
}

transform.named_sequence @traced(%model: !transform.any_op) {
  %0 = schedule.match "act" in %model
  schedule.opaque %0 {rule = "b d -> b d"}
  transform.yield
}
