// RUN: distir-opt %s | filecheck %s
// RUN: distir-opt %s | distir-opt | filecheck %s

// Every way to write a layout, and the one way it is printed.
"test.op"() {
  // CHECK: axis = #dist.layout<@m, [{d}, {}]>
  axis = #dist.layout<@m, [{d}, {}]>,
  // CHECK-SAME: axes = #dist.layout<@m, [{d, t}, {c}]>
  axes = #dist.layout<@m, [{d, t}, {c}]>,
  // CHECK-SAME: run = #dist.layout<@m, [{t:64}, {d, c:2}]>
  run = #dist.layout<@m, [{t:64}, {d, c:2}]>,
  // CHECK-SAME: whole = #dist.layout<@m>
  whole = #dist.layout<@m>,
  // A layout that splits nothing has one spelling, whatever the rank.
  // CHECK-SAME: whole2 = #dist.layout<@m>
  whole2 = #dist.layout<@m, [{}, {}]>,
  // CHECK-SAME: scalar = #dist.layout<@m>
  scalar = #dist.layout<@m, []>,
  // CHECK-SAME: partial_sum = #dist.layout<@m, partial sum {t}>
  partial_sum = #dist.layout<@m, partial sum {t}>,
  // Partial axes are sorted, one list per reduction.
  // CHECK-SAME: partials = #dist.layout<@m, [{a}], partial sum {c, d}, partial max {t}, partial min {u}>
  partials = #dist.layout<@m, [{a}], partial min {u}, partial max {t}, partial sum {d}, partial sum {c}>,
  // CHECK-SAME: quoted = #dist.layout<@"a \22mesh\22", [{d}]>
  quoted = #dist.layout<@"a \"mesh\"", [{d}]>
} : () -> ()
