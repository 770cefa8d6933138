// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @shape(%x: tensor<8xf32, #dist.layout<@A>>) {
  // CHECK: dist.reshard keeps the global shape and element type, but turns tensor<8xf32, #dist.layout<@A>> into tensor<4xf32, #dist.layout<@A, [{d}]>>
  %y = dist.reshard %x : tensor<8xf32, #dist.layout<@A>> -> tensor<4xf32, #dist.layout<@A, [{d}]>>
  func.return
}

// -----

func.func @element(%x: tensor<8xf32, #dist.layout<@A>>) {
  // CHECK: dist.reshard keeps the global shape and element type
  %y = dist.reshard %x : tensor<8xf32, #dist.layout<@A>> -> tensor<8xf16, #dist.layout<@A>>
  func.return
}

// -----

func.func @sequential(%x: tensor<8xf32>) {
  // CHECK: dist.reshard needs a #dist.layout on both sides
  %y = dist.reshard %x : tensor<8xf32> -> tensor<8xf32, #dist.layout<@A>>
  func.return
}

// -----

func.func @same_mesh(%x: tensor<8xf32, #dist.layout<@A>>) {
  // CHECK: dist.send must go to another mesh than @A
  %y = dist.send %x : tensor<8xf32, #dist.layout<@A>> -> tensor<8xf32, #dist.layout<@A>>
  func.return
}

// -----

func.func @constrain(%x: tensor<8xf32>) {
  // CHECK: dist.constrain keeps the type of its operand
  %y = dist.constrain %x to <@A> : tensor<8xf32> -> tensor<4xf32>
  func.return
}

// -----

// CHECK: f32 should be of base attribute tensor
func.func @not_a_tensor(%x: f32) {
  %y = dist.reshard %x : f32 -> f32
  func.return
}
