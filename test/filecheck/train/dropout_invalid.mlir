// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @ratio(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: ratio is 1.0, expected at least 0 and less than 1
  %y = train.dropout %x, %step {ratio = 1.0 : f64, seed = 0 : i64, stream = 0 : i64} : (tensor<4xf32>, tensor<i64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @integers(%x: tensor<4xi32>, %step: tensor<i64>) {
  // CHECK: train.dropout: x has elements of type i32, expected floats
  %y = train.dropout %x, %step {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64} : (tensor<4xi32>, tensor<i64>) -> tensor<4xi32>
  func.return
}

// -----

func.func @counter(%x: tensor<4xf32>, %step: tensor<1xi64>) {
  // CHECK: train.dropout: counter has shape [1], expected []
  %y = train.dropout %x, %step {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64} : (tensor<4xf32>, tensor<1xi64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @seed(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: seed is -1, expected 32 bits
  %y = train.dropout %x, %step {ratio = 0.5 : f64, seed = -1 : i64, stream = 0 : i64} : (tensor<4xf32>, tensor<i64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @result(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: y has shape [5], expected [4]
  %y = train.dropout %x, %step {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64} : (tensor<4xf32>, tensor<i64>) -> tensor<5xf32>
  func.return
}

// -----

func.func @together(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: coordinates, global_shape and one of splits for each coordinate go together
  %y = train.dropout %x, %step at(%step) {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @uneven(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: a tensor with global_shape [8] cannot be split by [0, 2, 3]
  %y = train.dropout %x, %step at(%step) {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64, global_shape = array<i64: 8>, splits = [array<i64: 0, 2, 3>]} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @part(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: what elements are dropped of has shape [4], expected [2]
  %y = train.dropout %x, %step at(%step) {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64, global_shape = array<i64: 8>, splits = [array<i64: 0, 4, 2>]} : (tensor<4xf32>, tensor<i64>, tensor<i64>) -> tensor<4xf32>
  func.return
}

// -----

func.func @mask(%x: tensor<4xf32>, %step: tensor<i64>) {
  // CHECK: train.dropout: mask has shape [5], expected [4]
  %y, %mask = train.dropout %x, %step {ratio = 0.5 : f64, seed = 0 : i64, stream = 0 : i64} : (tensor<4xf32>, tensor<i64>) -> (tensor<4xf32>, tensor<5xi1>)
  func.return
}

// -----

func.func @mask_of_numbers(%x: tensor<4xf32>) {
  // CHECK: train.dropout_grad: mask has elements of type f32, expected i1
  %y = train.dropout_grad %x, %x {ratio = 0.5 : f64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}
