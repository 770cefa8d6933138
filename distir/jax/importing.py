"""Traces a function of JAX and imports it as a sequential program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
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
    A function of JAX as a sequential program.

    - `in_tree`, `out_tree`: the pytrees of the tuple of arguments and of the result;
    - `arguments`, `results`: the leaves of both pytrees;
    - `function`, `args`: the function that was traced, and its arguments;
    - `updated`: for each result that replaces an argument in the next step, the index
      of its leaf and the index of the argument's leaf;
    - `notes`: remarks for the user.
    """

    program: ModelProgram
    in_tree: Any
    out_tree: Any
    arguments: Leaves
    results: Leaves
    updated: dict[int, int]
    function: Callable[..., Any]
    args: tuple[Any, ...]
    notes: tuple[str, ...] = ()


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    donate_argnums: int | Sequence[int] = (),
    batch_argnums: int | Sequence[int] | None = None,
) -> TracedFunction:
    """
    Traces a function with the arguments `args` and imports it. Computes nothing;
    arguments may be `jax.ShapeDtypeStruct`s. `donate_argnums` and `batch_argnums` are
    explained at `import_function`. Raises DistIRError, and any exception that the
    function raises.
    """
    if not isinstance(args, tuple | list):
        raise DistIRError(
            f"distir.jax: the arguments are a tuple of pytrees, but a "
            f"{type(args).__name__} is given; write (argument,) for a single one"
        )
    donated = _numbers(donate_argnums, len(args), "donate_argnums")
    prefixes = argument_prefixes(function, len(args))
    _check_arrays(args, prefixes)

    # A function of our own: one that `jax.jit` has returned keeps its donated arguments.
    @wraps(function)
    def traced(*own: Any) -> Any:
        return function(*own)

    lowered = jax.jit(traced, keep_unused=True).lower(*args)
    structs = jax.tree_util.tree_map(_struct_of, lowered.out_info)
    name = getattr(function, "__name__", type(function).__name__)
    arguments = leaves_of(tuple(args), prefixes)
    results = leaves_of(structs, "result")
    updated = updates(args, structs, donated)
    module = lowered.compiler_ir()
    assert module is not None
    text = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    made = import_stablehlo(text, name)
    inputs = _batch_leaves(args, updated, batch_argnums)
    notes: tuple[str, ...] = ()
    if not updated and batch_argnums is None and len(args) > 1:
        notes = (
            f"distir.jax: no part of the result has the pytree, shapes and types of an "
            f"argument, so that {name} counts as inference, with the batch in "
            f"{prefixes[-1]!r}; batch_argnums says otherwise",
        )
    describe(made.module, arguments, results, updated, inputs)
    return TracedFunction(
        ModelProgram(made.module, arrays=made.weights),
        jax.tree_util.tree_structure(tuple(args)),
        jax.tree_util.tree_structure(structs),
        arguments,
        results,
        updated,
        function,
        tuple(args),
        notes,
    )


def _check_arrays(args: Sequence[Any], prefixes: Sequence[str]) -> None:
    """Raises DistIRError if a leaf of an argument is neither an array nor a number."""
    for prefix, argument in zip(prefixes, args, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]:
            try:
                jax.api_util.shaped_abstractify(leaf)
            except TypeError:
                name = prefix + jax.tree_util.keystr(path)
                raise DistIRError(
                    f"distir.jax: {name} is no array but a {type(leaf).__name__}; leave it "
                    f"out of the arguments, by functools.partial or, for a module of "
                    f"Equinox, by equinox.partition(..., equinox.is_array)"
                ) from None


def _struct_of(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _numbers(given: int | Sequence[int], count: int, option: str) -> list[int]:
    """
    Returns the positions of arguments as non-negative numbers. `given` is one position
    or several; `count` is the number of arguments. Raises DistIRError with the name
    `option` for a position out of range.
    """
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
    """
    Returns the indices of the leaves that hold the batch. Leaves that a result replaces
    are never among them.
    """
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
