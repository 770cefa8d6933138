// RUN: distir-opt %s --split-input-file --verify-diagnostics

func.func @main(%pool: tensor<6x3x2x8xf32>, %table: tensor<4x3xi64>) {
  // expected-error@+1 {{train.paged_read: pool has shape [6, 3, 2, 8] and the table [4, 3]; expected [pools, pages, heads, page size, width] and [batch, columns]}}
  %k = train.paged_read %pool, %table : (tensor<6x3x2x8xf32>, tensor<4x3xi64>) -> tensor<4x3x6x8xf32>
  func.return
}

// -----

func.func @main(%pool: tensor<3x6x3x2x8xf32>, %table: tensor<4x3xi64>) {
  // expected-error@+1 {{train.paged_read: 4 sequences cannot be divided over 3 pools}}
  %k = train.paged_read %pool, %table : (tensor<3x6x3x2x8xf32>, tensor<4x3xi64>) -> tensor<4x3x6x8xf32>
  func.return
}

// -----

func.func @main(%pool: tensor<2x6x3x2x8xf32>, %table: tensor<4x3xi32>) {
  // expected-error@+1 {{train.paged_read: table has elements of type i32, expected i64}}
  %k = train.paged_read %pool, %table : (tensor<2x6x3x2x8xf32>, tensor<4x3xi32>) -> tensor<4x3x6x8xf32>
  func.return
}

// -----

func.func @main(%pool: tensor<2x6x3x2x8xf32>, %table: tensor<4x3xi64>) {
  // expected-error@+1 {{train.paged_read: result has type tensor<4x3x5x8xf32>, expected tensor<4x3x6x8xf32>}}
  %k = train.paged_read %pool, %table : (tensor<2x6x3x2x8xf32>, tensor<4x3xi64>) -> tensor<4x3x5x8xf32>
  func.return
}

// -----

func.func @main(%pool: tensor<2x6x3x2x8xf32>, %new: tensor<4x2x1x8xf32>, %table: tensor<4x3xi64>, %first: tensor<4xi64>) {
  // expected-error@+1 {{train.paged_write: new has shape [4, 2, 1, 8]; expected [4, 3, tokens, 8]}}
  %k = train.paged_write %pool, %new, %table, %first : (tensor<2x6x3x2x8xf32>, tensor<4x2x1x8xf32>, tensor<4x3xi64>, tensor<4xi64>) -> tensor<2x6x3x2x8xf32>
  func.return
}

// -----

func.func @main(%q: tensor<4x6x1x8xf32>, %pool: tensor<2x6x3x2x8xf32>, %table: tensor<4x3xi64>, %mask: tensor<4x1x1x5xf32>) {
  // expected-error@+1 {{train.paged_attention: mask has type tensor<4x1x1x5xf32>, expected tensor<4x1x1x6xf32>}}
  %y = train.paged_attention %q, %pool, %pool, %table, %mask : (tensor<4x6x1x8xf32>, tensor<2x6x3x2x8xf32>, tensor<2x6x3x2x8xf32>, tensor<4x3xi64>, tensor<4x1x1x5xf32>) -> tensor<4x6x1x8xf32>
  func.return
}

// -----

func.func @main(%q: tensor<4x4x1x8xf32>, %pool: tensor<2x6x3x2x8xf32>, %table: tensor<4x3xi64>, %mask: tensor<4x1x1x6xf32>) {
  // expected-error@+1 {{train.paged_attention: 4 query heads cannot share 3 key heads}}
  %y = train.paged_attention %q, %pool, %pool, %table, %mask : (tensor<4x4x1x8xf32>, tensor<2x6x3x2x8xf32>, tensor<2x6x3x2x8xf32>, tensor<4x3xi64>, tensor<4x1x1x6xf32>) -> tensor<4x4x1x8xf32>
  func.return
}

// -----

// A pool without widths holds a number for each head and token.
func.func @main(%pool: tensor<2x6x3x2xf32>, %new: tensor<4x3x1x8xf32>, %table: tensor<4x3xi64>, %first: tensor<4xi64>) {
  // expected-error@+1 {{train.paged_write: new has shape [4, 3, 1, 8]; expected [4, 3, tokens]}}
  %k = train.paged_write %pool, %new, %table, %first : (tensor<2x6x3x2xf32>, tensor<4x3x1x8xf32>, tensor<4x3xi64>, tensor<4xi64>) -> tensor<2x6x3x2xf32>
  func.return
}
