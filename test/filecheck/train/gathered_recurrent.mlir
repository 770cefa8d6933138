// RUN: distir-opt %s -p "verify-distribution,project{rank=1}" | filecheck %s

// Each of two devices has four of the eight hidden features, and the rows of all gates that belong to them. In the
// distributed form layouts say so; on a rank, whose types are local, `axes` names where states are gathered.

builtin.module {
  device.cluster @box {
    device.kind @chip on [0 to 2] {memory = 1000 : i64, memory_bandwidth = 1.0e+06 : f64, peak_flops = {default = 1.0e+06 : f64}, launch_latency = 0.0 : f64}
    device.link @wire spans 2 {bandwidth = 1.0e+06 : f64, latency = 1.0e-06 : f64}
  }
  device.mesh @m on @box <t = 2> [0 to 2]

  func.func @main(%x: tensor<5x4x6xf32, #dist.layout<@m>>, %w: tensor<1x32x6xf32, #dist.layout<@m, [{}, {t:4}, {}]>>, %r: tensor<1x32x8xf32, #dist.layout<@m, [{}, {t:4}, {}]>>, %h: tensor<1x4x8xf32, #dist.layout<@m, [{}, {}, {t}]>>) -> tensor<5x1x4x8xf32, #dist.layout<@m, [{}, {}, {}, {t}]>> {
    %y = train.gathered_lstm %x, %w, %r from %h, %h {direction = "forward"} : tensor<5x4x6xf32, #dist.layout<@m>>, tensor<1x32x6xf32, #dist.layout<@m, [{}, {t:4}, {}]>>, tensor<1x32x8xf32, #dist.layout<@m, [{}, {t:4}, {}]>> from tensor<1x4x8xf32, #dist.layout<@m, [{}, {}, {t}]>>, tensor<1x4x8xf32, #dist.layout<@m, [{}, {}, {t}]>> -> tensor<5x1x4x8xf32, #dist.layout<@m, [{}, {}, {}, {t}]>>
    func.return %y : tensor<5x1x4x8xf32, #dist.layout<@m, [{}, {}, {}, {t}]>>
  }
}

// CHECK:      %y = train.gathered_lstm %x, %w, %r from %h, %h {mesh = @m, direction = "forward", axes = ["t"]} : tensor<5x4x6xf32>, tensor<1x16x6xf32>, tensor<1x16x8xf32> from tensor<1x4x4xf32>, tensor<1x4x4xf32> -> tensor<5x1x4x4xf32>
// CHECK-NEXT: func.return %y : tensor<5x1x4x4xf32>
