"""Traces a function of JAX and imports it as a sequential program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from distir.errors import DistIRError
from distir.facade.model_program import ModelProgram
from distir.frontends.stablehlo.importer import import_stablehlo
from distir.frontends.stablehlo.roles import Leaves, describe
from distir.jax.pytrees import argument_prefixes, leaves_of, updates


@dataclass(frozen=True, eq=False)
class TracedFunction:
    """
    A function of JAX as a sequential program. `in_tree` and `out_tree` are the pytrees
    of the tuple of its arguments and of its results, `arguments` and `results` their
    leaves, and `updated` which result replaces which argument.
    """

    program: ModelProgram
    in_tree: Any
    out_tree: Any
    arguments: Leaves
    results: Leaves
    updated: dict[int, int]


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    donate_argnums: int | Sequence[int] = (),
    batch_argnums: int | Sequence[int] | None = None,
) -> TracedFunction:
    """
    Traces a function for arguments and imports it. Nothing is computed, and arguments
    may be `jax.ShapeDtypeStruct`s. `batch_argnums` are the positions of the arguments
    that hold the batch: by default those that no result replaces, or the last argument
    of a function that replaces none. Raises DistIRError, and what the function raises.
    """
    if not isinstance(args, tuple | list):
        raise DistIRError(
            f"distir.jax: the arguments are a tuple of pytrees, but a "
            f"{type(args).__name__} is given; write (argument,) for a single one"
        )
    donated = _numbers(donate_argnums, len(args), "donate_argnums")
    lowered = jax.jit(lambda *own: function(*own), keep_unused=True).lower(*args)
    structs = jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), lowered.out_info
    )
    prefixes = argument_prefixes(function, len(args))
    name = getattr(function, "__name__", type(function).__name__)
    arguments = leaves_of(tuple(args), prefixes)
    results = leaves_of(structs, "result")
    updated = updates(args, structs, donated)
    text = lowered.compiler_ir().operation.get_asm(
        print_generic_op_form=True, enable_debug_info=True
    )
    made = import_stablehlo(text, name)
    inputs = _batch_leaves(args, updated, batch_argnums)
    describe(made.module, arguments, results, updated, inputs)
    return TracedFunction(
        ModelProgram(made.module, arrays=made.weights),
        jax.tree_util.tree_structure(tuple(args)),
        jax.tree_util.tree_structure(structs),
        arguments,
        results,
        updated,
    )


def _numbers(given: int | Sequence[int], count: int, option: str) -> list[int]:
    """Returns positions of arguments. Raises DistIRError if there is no such one."""
    found = [given] if isinstance(given, int) else list(given)
    for number in found:
        if not -count <= number < count:
            raise DistIRError(
                f"distir.jax: {option} has {number}, but there are {count} arguments"
            )
    return [number % count for number in found]


def _batch_leaves(
    args: Sequence[Any],
    updated: dict[int, int],
    batch_argnums: int | Sequence[int] | None,
) -> set[int]:
    """Returns the leaves of the arguments that hold the batch."""
    replaced = set(updated.values())
    last = len(args) - 1
    asked = None
    if batch_argnums is not None:
        asked = _numbers(batch_argnums, len(args), "batch_argnums")
    elif not replaced:
        asked = [last]
    found: set[int] = set()
    start = 0
    for position, argument in enumerate(args):
        count = len(jax.tree_util.tree_leaves(argument))
        if asked is None or position in asked:
            found |= set(range(start, start + count)) - replaced
        start += count
    return found
