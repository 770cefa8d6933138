// RUN: distir-opt %s -p dce,verify-distribution | filecheck %s --check-prefix DCE
// RUN: distir-opt %s -p cse,verify-distribution | filecheck %s --check-prefix CSE
// RUN: distir-opt %s -p inline-calls,verify-distribution | filecheck %s --check-prefix INLINE

// The number of a message says which collectives travel in it, whichever of them a pass
// deletes: here the first, in the middle, or the last one.
device.cluster @two {
  device.kind @unit on [0 to 2] {memory = 1000000 : i64, memory_bandwidth = 1.0e+30 : f64, peak_flops = {default = 1.0e+30 : f64}, launch_latency = 0.0 : f64}
  device.link @wire spans 2 {bandwidth = 8.0 : f64, latency = 4.0 : f64}
}
device.mesh @mesh on @two <d = 2> [0 to 2]
#W = #dist.layout<@mesh>
#P = #dist.layout<@mesh, [], partial sum {d}>

// DCE-LABEL: @main
// DCE-NEXT:  %y = collective.all_reduce %b over [d] {dist.bucket = 0 : i64}
// DCE-NEXT:  %s, %t = func.call @pair
// DCE-NEXT:  func.return

// What is the same is sent once.
// CSE-LABEL: private @pair
// CSE-NEXT:  %x = collective.all_reduce %a over [d] {dist.bucket = 0 : i64}
// CSE-NEXT:  func.return %x, %x

// INLINE-LABEL: @main
// INLINE:       collective.all_reduce %c over [d] {dist.bucket = 0 : i64}
// INLINE-NEXT:  collective.all_reduce %b over [d] {dist.bucket = 1 : i64}
// INLINE-NEXT:  collective.all_reduce %b over [d] {dist.bucket = 1 : i64}
// INLINE-NEXT:  func.return
func.func @main(%a: tensor<4xf32, #P>, %b: tensor<4xf32, #P>, %c: tensor<4xf32, #P>) -> (tensor<4xf32, #W>, tensor<4xf32, #W>) {
  %x = collective.all_reduce %a over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  %y = collective.all_reduce %b over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  %z = collective.all_reduce %c over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  %s, %t = func.call @pair(%b) : (tensor<4xf32, #P>) -> (tensor<4xf32, #W>, tensor<4xf32, #W>)
  func.return %y, %s : tensor<4xf32, #W>, tensor<4xf32, #W>
}
func.func private @pair(%a: tensor<4xf32, #P>) -> (tensor<4xf32, #W>, tensor<4xf32, #W>) {
  %x = collective.all_reduce %a over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  %y = collective.all_reduce %a over [d] {dist.bucket = 0 : i64} : tensor<4xf32, #P> -> tensor<4xf32, #W>
  func.return %x, %y : tensor<4xf32, #W>, tensor<4xf32, #W>
}
