// RUN: distir-opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// No op holds text that is run: functions, settings and kinds of messages are known names.

func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = "torch.call"(%x) <{expression = "F.silu({0})"}> : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: torch.call

// -----

func.func @main(%x: tensor<2xf32>, %g: tensor<2xf32>) -> tensor<2xf32> {
  %y = torch.updates %x, %g {function = "sgd, print", settings = {}, lists = 2 : i64, given = [], in_place = ["kept"]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: torch.updates: there is no function 'sgd, print', only

// -----

func.func @main(%x: tensor<2xf32>, %g: tensor<2xf32>) -> tensor<2xf32> {
  %y = torch.updates %x, %g {function = "sgd", settings = {key = 1.0 : f64}, lists = 2 : i64, given = [], in_place = ["kept"]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: torch.updates: key = 1.000000e+00 : f64 is no hyper-parameter of train.sgd

// -----

func.func @main(%x: tensor<2xf32>, %g: tensor<2xf32>) -> tensor<2xf32> {
  %y = torch.updates %x, %g {function = "sgd", settings = {}, lists = 3 : i64, given = [], in_place = ["kept"]} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: do not make 3 lists

// -----

func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = torch.message %x {axes = ["d"], kind = "f(", reduction = "sum"} : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: torch.message: there are no messages of kind 'f(', only of all_reduce, reduce_scatter, all_gather

// -----

func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = torch.message %x {axes = ["d"], kind = "all_gather", reduction = "sum"} : (tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: messages of kind all_gather need no reduction and dims and runs

// -----

func.func @main(%x: tensor<2x8xf32>, %w: tensor<8x4xf32>) -> tensor<2x4xf32> {
  %y = torch.linear %x, %w : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

// CHECK: torch.linear: x has shape [2, 8], expected [2, 4]

// -----

func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<4xf32> {
  %z = torch.add_into %x, %y : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
  func.return %z : tensor<4xf32>
}

// CHECK: torch.add_into: the sum has another type than x

// -----

func.func @main(%x: tensor<2xf32>) -> tuple<tensor<4xf32>> {
  %z = torch.pack %x : (tensor<2xf32>) -> tuple<tensor<4xf32>>
  func.return %z : tuple<tensor<4xf32>>
}

// CHECK: torch.pack: the tuple has other types

// -----

func.func @main(%x: tensor<4x8xf32>, %y: tensor<8x6xf32>, %bucket: tensor<30xf32>) -> tensor<4x6xf32> {
  %z = torch.product_into %x, %y, %bucket {start = 8 : i64} : (tensor<4x8xf32>, tensor<8x6xf32>, tensor<30xf32>) -> tensor<4x6xf32>
  func.return %z : tensor<4x6xf32>
}

// CHECK: torch.product_into: 24 elements from 8 on are not all in a bucket of 30

// -----

func.func @main(%x: tensor<8x4xf32>, %y: tensor<8x6xf32>, %bucket: tensor<30xf32>) -> tensor<4x6xf32> {
  %z = torch.product_into %x, %y, %bucket {start = 0 : i64} : (tensor<8x4xf32>, tensor<8x6xf32>, tensor<30xf32>) -> tensor<4x6xf32>
  func.return %z : tensor<4x6xf32>
}

// CHECK: torch.product_into: the product sums 4 and 8 terms

// -----

func.func @main(%x: tensor<2xf32>, %bucket: tensor<3xf32>) -> tensor<2xf32> {
  %y = torch.message %x, %bucket {axes = ["d"], kind = "all_reduce", reduction = "sum", in_bucket} : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: torch.message: bucket has shape [3], expected [2]

// -----

func.func @main(%x: tensor<2xf32>, %bucket: tensor<2xf32>) -> tensor<2xf32> {
  %y = torch.message %x, %bucket {axes = ["d"], kind = "all_gather", dims = array<i64: 0>, runs = array<i64: -1>, in_bucket} : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}

// CHECK: torch.message: only an all_reduce, with one operand for each result and none to overwrite, has a bucket
