// RUN: distir-opt %s --verify-diagnostics --split-input-file | filecheck %s

func.func @no_axis(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.slice runs over no axis
  %y = collective.slice %x over [] : tensor<8xf32, #dist.layout<@m>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @axis_twice(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.slice names an axis twice
  %y = collective.slice %x over [t, t] : tensor<8xf32, #dist.layout<@m>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @neither_form(%x: tensor<8xf32>) {
  // CHECK: collective.all_reduce needs a #dist.layout on both sides; the op of one rank's program is collective.rank.all_reduce
  %y = collective.all_reduce %x over [t] : tensor<8xf32> -> tensor<8xf32>
  func.return
}

// -----

func.func @shape(%x: tensor<8xf32, #dist.layout<@m, [{t}]>>) {
  // CHECK: collective.all_gather keeps the global shape and element type, but turns tensor<8xf32, #dist.layout<@m, [{t}]>> into tensor<16xf32, #dist.layout<@m>>
  %y = collective.all_gather %x over [t] : tensor<8xf32, #dist.layout<@m, [{t}]>> -> tensor<16xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @reduce_whole(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.all_reduce: expected an operand that is partial over {t} with one reduction, got <@m>
  %y = collective.all_reduce %x over [t] : tensor<8xf32, #dist.layout<@m>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @reduce_two_reductions(%x: tensor<8xf32, #dist.layout<@m, partial sum {t}, partial max {d}>>) {
  // CHECK: collective.all_reduce: expected an operand that is partial over {d, t} with one reduction
  %y = collective.all_reduce %x over [d, t] : tensor<8xf32, #dist.layout<@m, partial sum {t}, partial max {d}>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @reduce_result(%x: tensor<8xf32, #dist.layout<@m, partial sum {d, t}>>) {
  // CHECK: collective.all_reduce over {t}: expected result layout <@m, partial sum {d}>, got <@m>
  %y = collective.all_reduce %x over [t] : tensor<8xf32, #dist.layout<@m, partial sum {d, t}>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @gather_other_axis(%x: tensor<8xf32, #dist.layout<@m, [{d}]>>) {
  // CHECK: collective.all_gather: expected an operand with a dimension whose innermost axes are {t}, got <@m, [{d}]>
  %y = collective.all_gather %x over [t] : tensor<8xf32, #dist.layout<@m, [{d}]>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

// The outer axis cannot be gathered while the inner one stays.
func.func @gather_outer_axis(%x: tensor<8xf32, #dist.layout<@m, [{d, t}]>>) {
  // CHECK: collective.all_gather: expected an operand with a dimension whose innermost axes are {d}, got <@m, [{d, t}]>
  %y = collective.all_gather %x over [d] : tensor<8xf32, #dist.layout<@m, [{d, t}]>> -> tensor<8xf32, #dist.layout<@m, [{t}]>>
  func.return
}

// -----

func.func @gather_result(%x: tensor<8x4xf32, #dist.layout<@m, [{d}, {t}]>>) {
  // CHECK: collective.all_gather over {t}: expected result layout <@m, [{d}, {}]>, got <@m>
  %y = collective.all_gather %x over [t] : tensor<8x4xf32, #dist.layout<@m, [{d}, {t}]>> -> tensor<8x4xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @scatter_result(%x: tensor<8x4xf32, #dist.layout<@m, partial sum {t}>>) {
  // CHECK: collective.reduce_scatter over {t}: expected result layout <@m, [{t}, {}]> or <@m, [{}, {t}]>, got <@m>
  %y = collective.reduce_scatter %x over [t] : tensor<8x4xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8x4xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @all_to_all_result(%x: tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>) {
  // CHECK: collective.all_to_all over {t}: expected result layout <@m, [{}, {t}]>, got <@m, [{t}, {}]>
  %y = collective.all_to_all %x over [t] : tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>
  func.return
}

// -----

func.func @slice_split(%x: tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>) {
  // CHECK: collective.slice: expected an operand that is replicated over {t}, got <@m, [{t}, {}]>
  %y = collective.slice %x over [t] : tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x4xf32, #dist.layout<@m, [{t}, {}]>>
  func.return
}

// -----

func.func @permute_whole(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.permute: expected one axis that splits the operand, got <@m>
  %y = collective.permute %x over [t] : tensor<8xf32, #dist.layout<@m>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @broadcast_split(%x: tensor<8xf32, #dist.layout<@m, [{t}]>>) {
  // CHECK: collective.broadcast: expected a whole value on one device, got <@m, [{t}]>
  %y = collective.broadcast %x over [t] : tensor<8xf32, #dist.layout<@m, [{t}]>> -> tensor<8xf32, #dist.layout<@n>>
  func.return
}

// -----

func.func @reduce_same_mesh(%x: tensor<8xf32, #dist.layout<@m, partial sum {t}>>) {
  // CHECK: a collective with a root must change the mesh from @m
  %y = collective.reduce %x over [t] : tensor<8xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @per_rank(%x: tensor<8xf32>) {
  // CHECK: property 'reduction' expected in operation 'collective.rank.all_reduce'
  %y = collective.rank.all_reduce %x over [t] {group = array<i64: 0, 1>} : tensor<8xf32> -> tensor<8xf32>
  func.return
}

// -----

func.func @send(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.send belongs to the per-rank form; use dist.send
  collective.send %x to 1 : tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @receive() {
  // CHECK: collective.recv belongs to the per-rank form; use dist.send
  %x = collective.recv from 1 : tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @wait_distributed(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.wait belongs to the per-rank form; use dist.send
  %y = collective.wait %x : tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @wait_for_an_argument(%x: tensor<8xf32>) {
  // CHECK: collective.wait needs the result of a collective.recv or of another collective with the attribute dist.asynchronous, or of a func.call
  %y = collective.wait %x : tensor<8xf32>
  func.return
}

// -----

func.func @wait_for_what_is_there() {
  // CHECK: collective.wait needs the result of a collective.recv or of another collective with the attribute dist.asynchronous, or of a func.call
  %x = collective.recv from 1 : tensor<8xf32>
  %y = collective.wait %x : tensor<8xf32>
  func.return
}

// -----

func.func @wait_twice() {
  // CHECK: collective.wait: the tensor is waited for twice
  %x = collective.recv from 1 {dist.asynchronous} : tensor<8xf32>
  %y = collective.wait %x : tensor<8xf32>
  %z = collective.wait %x : tensor<8xf32>
  func.return
}

// -----

func.func @no_wait() {
  // CHECK: onnx.Relu uses a tensor that is still on its way; collective.wait for it first
  %x = collective.recv from 1 {dist.asynchronous} : tensor<8xf32>
  %y = onnx.Relu(%x) : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

func.func @no_wait_for_a_collective(%x: tensor<8xf32>) {
  // CHECK: onnx.Relu uses a tensor that is still on its way; collective.wait for it first
  %y = collective.rank.all_reduce %x over [d] {group = array<i64: 0, 1>, reduction = "sum", dist.asynchronous} : tensor<8xf32> -> tensor<8xf32>
  %z = onnx.Relu(%y) : (tensor<8xf32>) -> tensor<8xf32>
  func.return
}

// -----

func.func @nothing_to_wait_for(%x: tensor<8xf32, #dist.layout<@m>>) {
  // CHECK: collective.slice cannot be asynchronous; remove dist.asynchronous
  %y = collective.slice %x over [d] {dist.asynchronous} : tensor<8xf32, #dist.layout<@m>> -> tensor<8xf32, #dist.layout<@m, [{d}]>>
  func.return
}

// -----

func.func @group_and_layouts(%x: tensor<8xf32, #dist.layout<@m, partial sum {t}>>) {
  // CHECK: collective.all_reduce has `group`, which belongs to the per-rank form; in a distributed program it follows from the layouts, so remove it
  %y = collective.all_reduce %x over [t] {group = array<i64: 0, 1>, reduction = "sum"} : tensor<8xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8xf32, #dist.layout<@m, partial sum {d}>>
  func.return
}

// -----

func.func @group_and_one_layout(%x: tensor<8xf32>) {
  // CHECK: collective.rank.all_reduce belongs to one rank's program, but its types have layouts; in a distributed program, write collective.all_reduce without a group
  %y = collective.rank.all_reduce %x over [t] {group = array<i64: 0, 1>, reduction = "sum"} : tensor<8xf32> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @reduction_and_layouts(%x: tensor<8xf32, #dist.layout<@m, partial sum {t}>>) {
  // CHECK: collective.all_reduce has `reduction`, which belongs to the per-rank form; in a distributed program it follows from the layouts, so remove it
  %y = collective.all_reduce %x over [t] {reduction = "max"} : tensor<8xf32, #dist.layout<@m, partial sum {t}>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @dimension_and_layouts(%x: tensor<8x8xf32, #dist.layout<@m, [{t}, {}]>>) {
  // CHECK: collective.all_gather has `dim`, which belongs to the per-rank form
  %y = collective.all_gather %x over [t] {dim = 1 : i64} : tensor<8x8xf32, #dist.layout<@m, [{t}, {}]>> -> tensor<8x8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @root_and_layouts(%x: tensor<8xf32, #dist.layout<@one>>) {
  // CHECK: collective.broadcast has `root`, which belongs to the per-rank form
  %y = collective.broadcast %x over [t] {root = 1 : i64} : tensor<8xf32, #dist.layout<@one>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @coordinate_with_layout() {
  // CHECK: collective.coordinate belongs to the per-rank form and gives a tensor<i64>, got tensor<i64, #dist.layout<@m>>
  %c = collective.coordinate over [d] {index = 1 : i64} : tensor<i64, #dist.layout<@m>>
  func.return
}

// -----

func.func @coordinate_below_zero() {
  // CHECK: collective.coordinate needs an axis and an index that is not negative
  %c = collective.coordinate over [d] {index = -1 : i64} : tensor<i64>
  func.return
}

// -----

func.func @joins_another_kind(%x: tensor<8xf32, #dist.layout<@m, [{t}]>>, %z: tensor<8xf16, #dist.layout<@m, [{t}]>>) {
  %w = collective.all_gather %z over [t] {dist.bucket = 1 : i64} : tensor<8xf16, #dist.layout<@m, [{t}]>> -> tensor<8xf16, #dist.layout<@m>>
  // CHECK: collective.all_gather has dist.bucket = 1 : i64 like the collective.all_gather before it, and differs from it in kind, axes, mesh, reduction, element type or dist.asynchronous; give it another number
  %y = collective.all_gather %x over [t] {dist.bucket = 1 : i64} : tensor<8xf32, #dist.layout<@m, [{t}]>> -> tensor<8xf32, #dist.layout<@m>>
  func.return
}

// -----

func.func @joins_what_it_needs(%x: tensor<8x8xf32, #dist.layout<@m, [{t}, {d}]>>) {
  %y = collective.all_gather %x over [t] : tensor<8x8xf32, #dist.layout<@m, [{t}, {d}]>> -> tensor<8x8xf32, #dist.layout<@m, [{}, {d}]>>
  %z = collective.slice %y over [t] : tensor<8x8xf32, #dist.layout<@m, [{}, {d}]>> -> tensor<8x8xf32, #dist.layout<@m, [{t}, {d}]>>
  // CHECK: collective.slice cannot travel in one message with another; remove dist.bucket
  %w = collective.slice %y over [t] {dist.bucket = 1 : i64} : tensor<8x8xf32, #dist.layout<@m, [{}, {d}]>> -> tensor<8x8xf32, #dist.layout<@m, [{t}, {d}]>>
  func.return
}

// -----

func.func @joins_its_operand(%x: tensor<8xf32>) {
  %y = collective.rank.all_reduce %x over [d] {group = array<i64: 0, 1>, reduction = "sum", dist.bucket = 1 : i64} : tensor<8xf32> -> tensor<8xf32>
  // CHECK: collective.rank.all_reduce has dist.bucket = 1 : i64, but its operand comes out of the same message; give it another number or remove dist.bucket
  %z = collective.rank.all_reduce %y over [d] {group = array<i64: 0, 1>, reduction = "sum", dist.bucket = 1 : i64} : tensor<8xf32> -> tensor<8xf32>
  func.return
}

// -----

func.func @ragged_rows(%x: tensor<2x4x2x6xf32, #dist.layout<@m, [{}, {t}, {}, {}]>>, %r: tensor<2x4xi64, #dist.layout<@m>>) {
  // CHECK: collective.ragged_all_to_all: expected a number for each row of tensor<2x4x2x6xf32, #dist.layout<@m, [{}, {t}, {}, {}]>>, got tensor<2x4xi64, #dist.layout<@m>>
  %y = collective.ragged_all_to_all %x of %r to %r over [t] {taken = 2 : i64} : tensor<2x4x2x6xf32, #dist.layout<@m, [{}, {t}, {}, {}]>>, tensor<2x4xi64, #dist.layout<@m>>, tensor<2x4xi64, #dist.layout<@m>> -> tensor<2x4x2x6xf32, #dist.layout<@m, [{t}, {}, {}, {}]>>
  func.return
}

// -----

func.func @ragged_layout(%x: tensor<2x4x2x6xf32, #dist.layout<@m, [{}, {t}, {}, {}]>>, %r: tensor<2x4x2xi64, #dist.layout<@m>>) {
  // CHECK: collective.ragged_all_to_all: expected rows that are split as <@m, [{}, {t}, {}, {}]>, got <@m>
  %y = collective.ragged_all_to_all %x of %r to %r over [t] {taken = 2 : i64} : tensor<2x4x2x6xf32, #dist.layout<@m, [{}, {t}, {}, {}]>>, tensor<2x4x2xi64, #dist.layout<@m>>, tensor<2x4x2xi64, #dist.layout<@m>> -> tensor<2x4x2x6xf32, #dist.layout<@m, [{t}, {}, {}, {}]>>
  func.return
}

// -----

func.func @two_dimensions(%x: tensor<8xf32>, %g: tensor<2x2xi64>) {
  // CHECK: collective.spmd.all_reduce: the group is a list of ranks, tensor<?xi64>, got tensor<2x2xi64>
  %y = collective.spmd.all_reduce %x in %g over [d] {reduction = "sum"} : tensor<8xf32>, tensor<2x2xi64> -> tensor<8xf32>
  func.return
}

// -----

func.func @wrong_sizes(%x: tensor<8xf32>) {
  // CHECK: collective.rank.all_gather: the result has shape [8], expected [16] from [8] in a group of 2
  %y = collective.rank.all_gather %x over [d] {group = array<i64: 0, 1>, dim = 0 : i64} : tensor<8xf32> -> tensor<8xf32>
  func.return
}

// -----

func.func @uneven_part(%x: tensor<7xf32>) {
  // CHECK: collective.rank.slice: dimension 0 of size 7 cannot be split among 2 ranks
  %y = collective.rank.slice %x over [d] {group = array<i64: 0, 1>, dim = 0 : i64} : tensor<7xf32> -> tensor<3xf32>
  func.return
}

// -----

func.func @unknown_reduction(%x: tensor<8xf32>) {
  // CHECK: collective.rank.all_reduce: `reduction` is 'product', expected one of sum, max, min
  %y = collective.rank.all_reduce %x over [d] {group = array<i64: 0, 1>, reduction = "product"} : tensor<8xf32> -> tensor<8xf32>
  func.return
}

// -----

func.func @twice_in_the_group(%x: tensor<8xf32>) {
  // CHECK: collective.rank.all_reduce: `group` must list at least one rank, each once
  %y = collective.rank.all_reduce %x over [d] {group = array<i64: 1, 1>, reduction = "sum"} : tensor<8xf32> -> tensor<8xf32>
  func.return
}
