"""`infer-types`: infers the shapes of all values from types alone."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.types import infer_types
from distir.passes.fold_shapes import check_calls, refine_type
from distir.passes.options import DistIRPass
from distir.program import functions


@dataclass(frozen=True)
class InferTypesPass(DistIRPass):
    """
    Infers the exact shape of every value from types alone (abstract interpretation).
    Raises DistIRError, with the name of the value, if a shape depends on the contents
    of a tensor; `fold-shapes` also computes such contents.
    """

    name = "infer-types"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for value, type_ in infer_types(op).items():
            refine_type(value, type_)
        for function in functions(op).values():
            if function.body.blocks:
                function.update_function_type()
        check_calls(op)
