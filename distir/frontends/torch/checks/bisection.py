"""Finds the first part of a module that the program computes wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.interpreter import PythonValues
from xdsl.ir import Operation

from distir.frontends.torch.modules.runs import (
    Array,
    ModuleCall,
    as_array,
    called,
    comparable,
    difference,
)
from distir.interpreters.functions import call_by_name
from distir.interpreters.reference import ReferenceInterpreter
from distir.program import entry_function, scope_of

if TYPE_CHECKING:
    import torch
    from xdsl.dialects.builtin import ModuleOp


class _Recording(ReferenceInterpreter):
    """An interpreter that records the results of all ops as arrays, by scope."""

    def run_op(self, op: Any, inputs: PythonValues = ()) -> PythonValues:
        results = super().run_op(op, inputs)
        if isinstance(op, Operation):
            own = self.__dict__.setdefault("recorded", {})
            own.setdefault(scope_of(op), []).extend(
                x for x in results if isinstance(x, np.ndarray)
            )
        return results


def first_difference(
    module: torch.nn.Module,
    call: ModuleCall,
    program: ModuleOp,
    arguments: Sequence[Array],
    *,
    training: bool,
) -> str | None:
    """
    Returns the name of the first part of a module, in the order in which parts return,
    that the program computes wrongly: none of the program's arrays in the part's scope
    equals a result of the part.

    If the program also lacks an input of this part, returns the name of the part that
    calls it. Returns None if all parts agree. `arguments` are the program's arguments
    for the call.
    """
    recording = _Recording(program)
    call_by_name(recording, entry_function(program).sym_name.data, list(arguments))
    recorded: dict[str, list[Array]] = recording.__dict__.get("recorded", {})
    everywhere = [*arguments, *(a for arrays in recorded.values() for a in arrays)]
    for name, (given, results) in _calls_of_parts(module, call, training=training):
        inside = [
            array
            for scope, arrays in recorded.items()
            if not name or scope == name or scope.startswith(f"{name}.")
            for array in arrays
        ]
        # A part of which the program has no op returns the results of another.
        if not any(_is_missing(x, inside, everywhere) for x in results):
            continue
        if name and any(_is_missing(x, everywhere) for x in given):
            return name.rpartition(".")[0]
        return name
    return None


def _is_missing(wanted: Array, *among: Sequence[Array]) -> bool:
    """
    Whether no array equals `wanted` up to rounding. Searches only the first sequence in
    `among` that has an array of the shape of `wanted`. Returns False if no sequence has
    one.
    """
    for arrays in among:
        like = [array for array in arrays if array.shape == wanted.shape]
        if like:
            return all(difference(wanted, array) is not None for array in like)
    return False


def _calls_of_parts(
    module: torch.nn.Module, call: ModuleCall, *, training: bool
) -> list[tuple[str, tuple[list[Array], list[Array]]]]:
    """
    Returns the float inputs and results of each part in its first call, by the part's
    name, in the order in which the calls returned.
    """
    import torch
    from torch.utils import _pytree

    found: dict[str, tuple[list[Array], list[Array]]] = {}

    def floats(values: Any) -> list[Array]:
        return [
            as_array(x).copy()
            for x in _pytree.tree_leaves(values)
            if isinstance(x, torch.Tensor) and x.is_floating_point()
        ]

    def hook(name: str) -> Any:
        def keep(_part: Any, args: Any, kwargs: Any, output: Any) -> None:
            if name not in found:
                found[name] = floats((args, kwargs)), floats(output)

        return keep

    handles = [
        part.register_forward_hook(hook(name), with_kwargs=True)
        for name, part in module.named_modules()
    ]
    try:
        with comparable(module, training=training):
            called(module, call)
    finally:
        for handle in handles:
            handle.remove()
    return list(found.items())
