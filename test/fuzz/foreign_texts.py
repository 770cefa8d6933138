"""Programs of other compilers, mutated: dialects that DistIR does not know."""

from __future__ import annotations

from fuzz.scenario import Scenario

_TEXTS = [
    """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %c = "stablehlo.constant"() <{value = dense<0xFF800000> : tensor<f32>}> : () -> tensor<f32>
  %h = "stablehlo.dot_general"(%x, %w) {lhs = [1], rhs = [0]} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %m = "stablehlo.reduce"(%h, %c) ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = "stablehlo.maximum"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    "stablehlo.return"(%s) : (tensor<f32>) -> ()
  }) {dimensions = array<i64: 1>} : (tensor<8x32xf32>, tensor<f32>) -> tensor<8xf32>
  %y = "stablehlo.tanh"(%h) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  func.return %y : tensor<8x32xf32>
}
""",
    """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %zero = arith.constant 0.0 : f32
  %e = "tensor.empty"() : () -> tensor<8x32xf32>
  %f = "linalg.fill"(%zero, %e) <{operandSegmentSizes = array<i32: 1, 1>}> ({
  ^bb0(%a: f32, %b: f32):
    "linalg.yield"(%a) : (f32) -> ()
  }) : (f32, tensor<8x32xf32>) -> tensor<8x32xf32>
  %h = onnx.MatMul(%x, %w) : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %y = arith.addf %h, %f : tensor<8x32xf32>
  func.return %y : tensor<8x32xf32>
}
""",
    """
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %c = arith.constant dense<[1, 2, 3, 4]> : tensor<4xi64>
  %y = "toy.scale"(%x) {factor = 2.0 : f64, names = ["a", "b"], at = @main} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %a, %b = "toy.split"(%y, %c) : (tensor<8x16xf32>, tensor<4xi64>) -> (tensor<8x16xf32>, tensor<?x16xf32>)
  %z = onnx.Relu(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %z : tensor<8x16xf32>
}
func.func public @eval(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %y = func.call @main(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  func.return %y : tensor<8x16xf32>
}
""",
]


def foreign() -> list[Scenario]:
    """Each program, damaged, through passes and commands."""
    found = [
        Scenario(
            "foreign",
            "p.mlir",
            text.encode(),
            ("p.mlir", "--allow-unregistered-dialect", "-p", passes),
            tool="distir-opt",
        )
        for text in _TEXTS
        for passes in (
            "distribute{d=2 t=2 cluster=cpu}",
            "distribute{p=2 cluster=cpu}",
            "distribute{d=2 cluster=cpu},project{rank=1}",
            "dce,cse,canonicalize",
        )
    ]
    commands = (
        "check p.mlir p.mlir",
        "distribute p.mlir --cluster cpu -d 2 -o out.mlir",
    )
    return found + [
        Scenario("foreign", "p.mlir", text.encode(), tuple(command.split()))
        for text in _TEXTS
        for command in commands
    ]
