// RUN: distir-opt %s -p "project{rank=0}" | filecheck %s --check-prefix FIRST
// RUN: distir-opt %s -p "project{rank=1}" | filecheck %s --check-prefix SECOND
// RUN: distir-opt %s -p "project{rank=1}" -t torch | filecheck %s --check-prefix TORCH

// Asynchronous sends: the sender goes on; the receiver starts as early as the transfers
// before leave it to, and waits right before it uses the value. What it computes in
// between (%b) runs while the value is on its way.

device.mesh @stage0 on @box <> [0]
device.mesh @stage1 on @box <> [1]
#D0 = #dist.layout<@stage0>
#D1 = #dist.layout<@stage1>

func.func @main(%x: tensor<4xf32, #D0>, %y: tensor<4xf32, #D1>) -> (tensor<4xf32, #D1>, tensor<4xf32, #D1>) {
  %a = onnx.Relu(%x) : (tensor<4xf32, #D0>) -> tensor<4xf32, #D0>
  %b = onnx.Relu(%y) : (tensor<4xf32, #D1>) -> tensor<4xf32, #D1>
  %s = dist.send %a {dist.asynchronous} : tensor<4xf32, #D0> -> tensor<4xf32, #D1>
  %u = dist.send %x {dist.asynchronous} : tensor<4xf32, #D0> -> tensor<4xf32, #D1>
  %v = dist.send %x {dist.asynchronous} : tensor<4xf32, #D0> -> tensor<4xf32, #D1>
  %c = onnx.Add(%s, %b) : (tensor<4xf32, #D1>, tensor<4xf32, #D1>) -> tensor<4xf32, #D1>
  %d = onnx.Add(%s, %c) : (tensor<4xf32, #D1>, tensor<4xf32, #D1>) -> tensor<4xf32, #D1>
  %back = dist.send %d {dist.asynchronous} : tensor<4xf32, #D1> -> tensor<4xf32, #D0>
  %e = onnx.Relu(%d) : (tensor<4xf32, #D1>) -> tensor<4xf32, #D1>
  %w = dist.send %back {dist.asynchronous} : tensor<4xf32, #D0> -> tensor<4xf32, #D1>
  %f = onnx.Add(%w, %e) : (tensor<4xf32, #D1>, tensor<4xf32, #D1>) -> tensor<4xf32, #D1>
  func.return %f, %u : tensor<4xf32, #D1>, tensor<4xf32, #D1>
}

// FIRST:       %a = onnx.Relu(%x)
// FIRST-NEXT:  collective.send %a to 1 {dist.asynchronous} : tensor<4xf32>
// FIRST-NEXT:  collective.send %x to 1 {dist.asynchronous} : tensor<4xf32>
// FIRST-NEXT:  collective.send %x to 1 {dist.asynchronous} : tensor<4xf32>
// FIRST-NEXT:  %arriving = collective.recv from 1 {dist.asynchronous} : tensor<4xf32>
// FIRST-NEXT:  %back = collective.wait %arriving : tensor<4xf32>
// FIRST-NEXT:  collective.send %back to 1 {dist.asynchronous} : tensor<4xf32>
// FIRST-NEXT:  func.return

// What is returned, and what nothing uses, is waited for in the end.

// SECOND:      %arriving = collective.recv from 0 {dist.asynchronous} : tensor<4xf32>
// SECOND-NEXT: %arriving_1 = collective.recv from 0 {dist.asynchronous} : tensor<4xf32>
// SECOND-NEXT: %arriving_2 = collective.recv from 0 {dist.asynchronous} : tensor<4xf32>
// SECOND-NEXT: %b = onnx.Relu(%y)
// SECOND-NEXT: %s = collective.wait %arriving : tensor<4xf32>
// SECOND-NEXT: %c = onnx.Add(%s, %b)
// SECOND-NEXT: %d = onnx.Add(%s, %c)
// SECOND-NEXT: collective.send %d to 0 {dist.asynchronous} : tensor<4xf32>
// SECOND-NEXT: %arriving_3 = collective.recv from 0 {dist.asynchronous} : tensor<4xf32>
// SECOND-NEXT: %e = onnx.Relu(%d)
// SECOND-NEXT: %w = collective.wait %arriving_3 : tensor<4xf32>
// SECOND-NEXT: %f = onnx.Add(%w, %e)
// SECOND-NEXT: %u = collective.wait %arriving_1 : tensor<4xf32>
// SECOND-NEXT: %v = collective.wait %arriving_2 : tensor<4xf32>
// SECOND-NEXT: func.return %f, %u

// TORCH:       arriving = collectives.start_recv((4,), torch.float32, self.numbers[0])
// TORCH:       b =
// TORCH-NEXT:  s = collectives.wait(arriving)
// TORCH-NEXT:  del arriving
// TORCH-NEXT:  c = s + b
