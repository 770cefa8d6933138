// RUN: distir-opt %s --parsing-diagnostics --verify-diagnostics --split-input-file | filecheck %s

// CHECK: layout <@m, [{d}, {d}]> uses an axis twice
"test.op"() {l = #dist.layout<@m, [{d}, {d}]>} : () -> ()

// -----

// CHECK: layout <@m, [{d}], partial sum {d}> uses an axis twice
"test.op"() {l = #dist.layout<@m, [{d}], partial sum {d}>} : () -> ()

// -----

// CHECK: a run length must be positive
"test.op"() {l = #dist.layout<@m, [{d:0}]>} : () -> ()

// -----

// CHECK: Expected integer literal
"test.op"() {l = #dist.layout<@m, [{d:}]>} : () -> ()

// -----

// CHECK: Expected one of 'max', 'min', 'sum'
"test.op"() {l = #dist.layout<@m, partial product {d}>} : () -> ()

// -----

// CHECK: expect symbol name
"test.op"() {l = #dist.layout<m>} : () -> ()
