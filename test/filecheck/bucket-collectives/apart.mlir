// RUN: distir-opt %s -p bucket-collectives | filecheck %s

// What keeps collectives apart: another element type, mesh axis, or kind. Gatherings do not
// move across calls, for what they gather would be held meanwhile; reductions do, as long as
// they are not asynchronous: those would start later.
device.cluster @four {
  device.kind @unit on [0 to 4] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 4 {bandwidth = 8.0 : f64, latency = 4.0 : f64}
}
device.mesh @mesh on @four <d = 2, t = 2> [0 to 4]
#W = #dist.layout<@mesh>
#D = #dist.layout<@mesh, [{d}]>
#PD = #dist.layout<@mesh, [], partial sum {d}>
#PT = #dist.layout<@mesh, [], partial sum {t}>
#MD = #dist.layout<@mesh, [], partial max {d}>

func.func private @layer(%x: tensor<8xf32, #W>) -> tensor<8xf32, #W> {
  func.return %x : tensor<8xf32, #W>
}

// CHECK-LABEL: @kinds
// CHECK-NOT: dist.bucket
func.func @kinds(%a: tensor<8xf32, #PD>, %b: tensor<8xf16, #PD>, %c: tensor<8xf32, #PT>, %e: tensor<8xf32, #MD>) -> (tensor<8xf32, #W>, tensor<8xf16, #W>, tensor<8xf32, #W>, tensor<8xf32, #W>, tensor<8xf32, #D>) {
  %0 = collective.all_reduce %a over [d] : tensor<8xf32, #PD> -> tensor<8xf32, #W>
  %1 = collective.all_reduce %b over [d] : tensor<8xf16, #PD> -> tensor<8xf16, #W>
  %2 = collective.all_reduce %c over [t] : tensor<8xf32, #PT> -> tensor<8xf32, #W>
  %3 = collective.all_reduce %e over [d] : tensor<8xf32, #MD> -> tensor<8xf32, #W>
  %4 = collective.reduce_scatter %a over [d] : tensor<8xf32, #PD> -> tensor<8xf32, #D>
  func.return %0, %1, %2, %3, %4 : tensor<8xf32, #W>, tensor<8xf16, #W>, tensor<8xf32, #W>, tensor<8xf32, #W>, tensor<8xf32, #D>
}

// CHECK-LABEL: @gathers
// CHECK-NOT: dist.bucket
func.func @gathers(%a: tensor<8xf32, #D>, %b: tensor<8xf32, #D>) -> (tensor<8xf32, #W>, tensor<8xf32, #W>) {
  %0 = collective.all_gather %a over [d] : tensor<8xf32, #D> -> tensor<8xf32, #W>
  %1 = func.call @layer(%0) : (tensor<8xf32, #W>) -> tensor<8xf32, #W>
  %2 = collective.all_gather %b over [d] : tensor<8xf32, #D> -> tensor<8xf32, #W>
  %3 = func.call @layer(%2) : (tensor<8xf32, #W>) -> tensor<8xf32, #W>
  func.return %1, %3 : tensor<8xf32, #W>, tensor<8xf32, #W>
}

// The bucket moves down to the second one: nothing uses the first one's result before.
// CHECK-LABEL: @reductions
// CHECK-NEXT: %[[X:.*]] = func.call @layer
// CHECK-NEXT: %[[B:.*]] = collective.slice %[[X]]
// CHECK-NEXT: %[[P:.*]] = onnx.ReduceSum
// CHECK-NEXT: collective.all_reduce %a over [d] {dist.bucket = 0 : i64}
// CHECK-NEXT: collective.all_reduce %[[P]] over [d] {dist.bucket = 0 : i64}
func.func @reductions(%a: tensor<1xf32, #PD>, %x: tensor<8xf32, #W>) -> (tensor<1xf32, #W>, tensor<1xf32, #W>) {
  %0 = collective.all_reduce %a over [d] : tensor<1xf32, #PD> -> tensor<1xf32, #W>
  %1 = func.call @layer(%x) : (tensor<8xf32, #W>) -> tensor<8xf32, #W>
  %2 = collective.slice %1 over [d] : tensor<8xf32, #W> -> tensor<8xf32, #D>
  %3 = onnx.ReduceSum(%2) : (tensor<8xf32, #D>) -> tensor<1xf32, #PD>
  %4 = collective.all_reduce %3 over [d] : tensor<1xf32, #PD> -> tensor<1xf32, #W>
  func.return %0, %4 : tensor<1xf32, #W>, tensor<1xf32, #W>
}

// CHECK-LABEL: @asynchronous
// CHECK-NOT: dist.bucket
func.func @asynchronous(%a: tensor<1xf32, #PD>, %x: tensor<8xf32, #W>) -> (tensor<1xf32, #W>, tensor<1xf32, #W>) {
  %0 = collective.all_reduce %a over [d] {dist.asynchronous} : tensor<1xf32, #PD> -> tensor<1xf32, #W>
  %1 = func.call @layer(%x) : (tensor<8xf32, #W>) -> tensor<8xf32, #W>
  %2 = collective.slice %1 over [d] : tensor<8xf32, #W> -> tensor<8xf32, #D>
  %3 = onnx.ReduceSum(%2) : (tensor<8xf32, #D>) -> tensor<1xf32, #PD>
  %4 = collective.all_reduce %3 over [d] {dist.asynchronous} : tensor<1xf32, #PD> -> tensor<1xf32, #W>
  func.return %0, %4 : tensor<1xf32, #W>, tensor<1xf32, #W>
}
