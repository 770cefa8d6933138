// The program passes through unchanged; the report goes to stderr.
// RUN: distir-opt %s -p "simulate{cluster=dgx2}" 2>/dev/null | filecheck %s
// RUN: distir-opt %s -p "simulate{cluster=dgx2 json=\"%t.json\" trace=\"%t.trace\" html=\"%t.html\"}" 2>&1 >/dev/null | filecheck %s --check-prefix REPORT
// RUN: distir-opt %s -p "simulate{cluster=dgx2 flat=true}" 2>&1 >/dev/null | filecheck %s --check-prefix REPORT
// RUN: filecheck %s --check-prefix JSON < %t.json
// RUN: filecheck %s --check-prefix TRACE < %t.trace
// RUN: filecheck %s --check-prefix HTML < %t.html
// RUN: not distir-opt %s -p simulate 2>&1 | filecheck %s --check-prefix NONE
// RUN: not distir-opt %s -p "simulate{cluster=dgx3}" 2>&1 | filecheck %s --check-prefix UNKNOWN
// RUN: not distir-opt %s -p "simulate{cluster=dgx2 devices=17}" 2>&1 | filecheck %s --check-prefix PARTIAL

func.func @main(%x: tensor<1024x4096xf16>, %w: tensor<4096x4096xf16> {dist.role = "parameter"}) -> tensor<1024x4096xf16> {
  %h = onnx.MatMul(%x, %w) {scope = "layer"} : (tensor<1024x4096xf16>, tensor<4096x4096xf16>) -> tensor<1024x4096xf16>
  %y = onnx.Relu(%h) : (tensor<1024x4096xf16>) -> tensor<1024x4096xf16>
  func.return %y : tensor<1024x4096xf16>
}

// CHECK:      func.func @main
// CHECK-NEXT:   onnx.MatMul
// CHECK-NEXT:   onnx.Relu

// A product of 2 x 1024 x 4096 x 4096 operations at 125e12 a second, then 16 MiB through
// memory at 900e9 bytes a second, each after a launch of 5 us.
// REPORT: step time 0.000303519 s, 3.37376e+06 samples/s, 2 ops on 1 of the devices of @dgx2
// REPORT-NEXT: device
// REPORT-NEXT: 0  58720256  32000000000  0  3.43597e+10  0.000303519  0  0
// REPORT-NEXT: mfu 0.905636, exposed communication 0, bubble 0 of the step time

// JSON: "peak_memory_bytes": [
// JSON-NEXT: 58720256

// TRACE: "name": "onnx.MatMul layer", "cat": "compute", "ph": "X"
// TRACE: "name": "onnx.Relu", "cat": "compute", "ph": "X"

// HTML: <!DOCTYPE html>
// HTML: "by_kind":{"parameters":33554432,"optimizer state":0,"gradients":0,"activations":16777216,"communication buffers":0,"workspace":0,"inputs":8388608,"caches":0,"constants":0}

// NONE: error: the program is not distributed and names no cluster; give one, with `distir simulate --cluster
// UNKNOWN: error: there is no built-in cluster 'dgx3'
// PARTIAL: error: cluster @dgx2 grows by whole nodes of 16 devices, but 17 is not a multiple of 16
