// RUN: distir-opt %s -p fuse-operators --split-input-file | filecheck %s

// The updates of two parameters are one call, which overwrites them: each is an argument that
// a result replaces, and nothing looks at it afterwards. A cast of a new parameter waits
// until both are there.

func.func @main(%w: tensor<2x4xf32> {dist.name = "w"}, %b: tensor<4xf32> {dist.name = "b"}, %dw: tensor<2x4xf32>, %db: tensor<4xf32>) -> (tensor<2x4xf32> {dist.updates = "w"}, tensor<4xf32> {dist.updates = "b"}, tensor<2x4xf16>) {
  %w2 = train.sgd %w, %dw {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  %n = onnx.Cast(%w2) {to = 10 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf16>
  %b2 = train.sgd %b, %db {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %w2, %b2, %n : tensor<2x4xf32>, tensor<4xf32>, tensor<2x4xf16>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %w2, %b2 = torch.updates %w, %b, %dw, %db {function = "sgd", settings = {learning_rate = 1.000000e-01 : f64, weight_decay = 0.000000e+00 : f64}, lists = 2 : i64, given = [], in_place = ["overwritten"]}
// CHECK-NEXT:   %n = onnx.Cast(%w2)
// CHECK-NEXT:   func.return %w2, %b2, %n

// -----

// Other hyper-parameters are another call.

func.func @main(%w: tensor<4xf32> {dist.name = "w"}, %b: tensor<4xf32> {dist.name = "b"}, %dw: tensor<4xf32>, %db: tensor<4xf32>) -> (tensor<4xf32> {dist.updates = "w"}, tensor<4xf32> {dist.updates = "b"}) {
  %w2 = train.sgd %w, %dw {learning_rate = 0.1 : f64, weight_decay = 0.5 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b2 = train.sgd %b, %db {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %w2, %b2 : tensor<4xf32>, tensor<4xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   torch.updates %w, %dw {{.*}}weight_decay = 5.000000e-01{{.*}}in_place = ["overwritten"]
// CHECK-NEXT:   torch.updates %b, %db {{.*}}weight_decay = 0.000000e+00{{.*}}in_place = ["overwritten"]
// CHECK-NEXT:   func.return

// -----

// Not in place: what is returned besides the new parameter, is looked at through a view after
// the update, or is no argument that is replaced.

func.func @main(%w: tensor<4xf32> {dist.name = "w"}, %v: tensor<2x2xf32> {dist.name = "v"}, %u: tensor<4xf32> {dist.name = "u"}, %d: tensor<4xf32>, %dv: tensor<2x2xf32>) -> (tensor<4xf32> {dist.updates = "w"}, tensor<4xf32>, tensor<2x2xf32> {dist.updates = "v"}, tensor<2x2xf32>, tensor<4xf32>) {
  %t = onnx.Transpose(%v) {perm = [1 : i64, 0 : i64]} : (tensor<2x2xf32>) -> tensor<2x2xf32>
  %w2 = train.sgd %w, %d {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %v2 = train.sgd %v, %dv {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
  %u2 = train.sgd %u, %d {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %w2, %w, %v2, %t, %u2 : tensor<4xf32>, tensor<4xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<4xf32>
}

// CHECK:      func.func @main
// CHECK-NOT:    overwritten
// CHECK:        func.return

// -----

// Not in place either: the gradient of %b may be a view of %w, which a function gives back.
// What the function computes from %u lies elsewhere.

func.func private @f(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = onnx.Add(%y, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %x, %0 : tensor<4xf32>, tensor<4xf32>
}

func.func @main(%w: tensor<4xf32> {dist.name = "w"}, %b: tensor<4xf32> {dist.name = "b"}, %u: tensor<4xf32> {dist.name = "u"}, %d: tensor<4xf32>) -> (tensor<4xf32> {dist.updates = "w"}, tensor<4xf32> {dist.updates = "b"}, tensor<4xf32> {dist.updates = "u"}) {
  %g, %h = func.call @f(%w, %u) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %w2 = train.sgd %w, %d {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b2 = train.sgd %b, %g {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %u2 = train.sgd %u, %h {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %w2, %b2, %u2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK:      func.func @main
// CHECK:        torch.updates %w, %d {function = "sgd", {{.*}}in_place = ["kept"]}
// CHECK-NEXT:   torch.updates %b, %u, %g, %h {{.*}}in_place = ["overwritten"]

// -----

// A state that another update needs first: that one comes later.

func.func @main(%w: tensor<4xf32> {dist.name = "w"}, %b: tensor<4xf32> {dist.name = "b"}, %d: tensor<4xf32>) -> (tensor<4xf32> {dist.updates = "w"}, tensor<4xf32> {dist.updates = "b"}) {
  %w2 = train.sgd %w, %d {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g = onnx.Neg(%w2) : (tensor<4xf32>) -> tensor<4xf32>
  %b2 = train.sgd %b, %g {learning_rate = 0.1 : f64, weight_decay = 0.0 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return %w2, %b2 : tensor<4xf32>, tensor<4xf32>
}

// CHECK:      func.func @main
// CHECK-NEXT:   %w2 = torch.updates %w, %d {{.*}}in_place = ["overwritten"]
// CHECK-NEXT:   %g = onnx.Neg(%w2)
// CHECK-NEXT:   %b2 = torch.updates %b, %g {{.*}}in_place = ["overwritten"]
// CHECK-NEXT:   func.return %w2, %b2
