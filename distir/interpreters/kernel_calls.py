"""
Users' kernels on arrays: what their references compute, on whole operands or on parts.
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Block, SSAValue

from distir.dialects.kernel import KernelCallOp, KernelDefOp, kernel_of
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.interpreters.functions import ProgramFunctions
from distir.sharding.kernel_parts import parts_of, reference_part, rule_of

_Shapes = tuple[tuple[int, ...], ...]


@register_impls
class KernelFunctions(InterpreterFunctions):
    """
    Implementations of calls of a program's kernels; the user's functions are not loaded.
    """

    def __init__(self, module: ModuleOp):
        self._module = module
        self._parts: dict[tuple[str, _Shapes], tuple[Block, tuple[SSAValue, ...]]] = {}

    @impl(KernelCallOp)
    def call(
        self, interpreter: Interpreter, op: KernelCallOp, args: PythonValues
    ) -> PythonValues:
        """Returns the results of the reference."""
        shapes = tuple(shape_of(value.type) for value in op.inputs)
        key = op.symbol, shapes
        if key not in self._parts:
            self._parts[key] = _part(kernel_of(self._module, op), shapes)
        block, results = self._parts[key]
        values: dict[SSAValue, Any] = dict(zip(block.args, args, strict=True))
        for inner in block.ops:
            if inner.results:
                given = tuple(values[v] for v in inner.operands)
                found = ProgramFunctions.run_one(interpreter, inner, given)
                values.update(zip(inner.results, found, strict=True))
        return tuple(values[v] for v in results)


def _part(kernel: KernelDefOp, shapes: _Shapes) -> tuple[Block, tuple[SSAValue, ...]]:
    """Returns the reference for operands of these shapes, which are whole or parts."""
    block = kernel.reference.block
    parts = parts_of(kernel, shapes)
    if not parts:
        return block, tuple(kernel.result.values)
    found = reference_part(block, rule_of(kernel), parts)
    if isinstance(found, str):
        raise DistIRError(f"kernel @{kernel.symbol}: {found}")
    return found.block, found.results
