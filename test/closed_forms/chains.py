"""Chains of large matrices: programs whose parameters are counted to the last one."""

from __future__ import annotations

from itertools import pairwise

from support.programs import parse
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.differentiate import DifferentiatePass


def chain(sizes: list[int], batch: int, **options: object) -> ModuleOp:
    """
    A training step of matrices `sizes[i] x sizes[i + 1]` in bf16, one after another, on
    samples of `sizes[0]` numbers, with the mean squared error as loss. The first matrix
    is the only one whose input needs no gradient.
    """
    arguments = [
        f"%w{i}: tensor<{rows}x{columns}xbf16> "
        f'{{dist.role = "parameter", dist.name = "w{i}"}}'
        for i, (rows, columns) in enumerate(pairwise(sizes))
    ]
    products = [
        f"  %h{i + 1} = onnx.MatMul(%h{i}, %w{i}) : (tensor<{batch}x{rows}xbf16>, "
        f"tensor<{rows}x{columns}xbf16>) -> tensor<{batch}x{columns}xbf16>"
        for i, (rows, columns) in enumerate(pairwise(sizes))
    ]
    result = f"tensor<{batch}x{sizes[-1]}xbf16>"
    module = parse(
        f"func.func @main(%h0: tensor<{batch}x{sizes[0]}xbf16> "
        f'{{dist.role = "input", dist.name = "x"}}, {", ".join(arguments)}) -> '
        f"{result} {{\n"
        + "\n".join(products)
        + f"\n  func.return %h{len(sizes) - 1} : {result}\n}}"
    )
    DifferentiatePass(**({"loss": "mse"} | options)).apply(Context(), module)  # type: ignore[arg-type]
    return module
