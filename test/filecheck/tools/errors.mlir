// Errors are one paragraph on stderr.
// RUN: not distir-opt %s -p "distribute{d=3}" 2>&1 | filecheck %s --check-prefix BATCH
// RUN: not distir-opt %s -p "distribute{d=2,e=2}" 2>&1 | filecheck %s --check-prefix OPTION
// RUN: not distir-opt %s -p "no-such-pass" 2>&1 | filecheck %s --check-prefix PASS
// RUN: not distir-opt %s.missing 2>&1 | filecheck %s --check-prefix MISSING

// Tests can expect them, as they expect a verifier's.
// RUN: distir-opt %s -p "distribute{d=3}" --verify-diagnostics | filecheck %s --check-prefix EXPECTED

// BATCH: error: {{.*}}'x'
// BATCH-NOT: Traceback
// OPTION: error: {{.*}}e
// PASS: error: Unrecognized passes: ['no-such-pass']
// MISSING: error: {{.*}}errors.mlir.missing: No such file or directory
// EXPECTED: input 'x'
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32> {dist.role = "parameter"}) -> tensor<8x32xf32> {
  %y = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  func.return %y : tensor<8x32xf32>
}
