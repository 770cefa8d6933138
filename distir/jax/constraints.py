"""Finds the layouts of values inside a JAX function, by name and by scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

import jax
import jax.extend.core as jex
from jax.sharding import NamedSharding
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import Layout
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.importer import convert_module
from distir.frontends.stablehlo.names import scope_of_name
from distir.frontends.stablehlo.ops.sharding import NAME_TARGET
from distir.frontends.stablehlo.origins import layouts_of_origins
from distir.frontends.stablehlo.parser import name_of, parse_stablehlo
from distir.frontends.stablehlo.registry import HloResult
from distir.jax.importing import TracedFunction
from distir.jax.names import with_constraints, with_marks


def layouts_inside(traced: TracedFunction, program: ModuleOp) -> dict[str, Layout]:
    """
    Returns the layouts of values inside a JAX function, in the distributed program
    `program`:

    - a value that the function names with `checkpoint_name`, under that name;
    - the last value of a scope that ops outside the scope use, under the scope's name.
      A scope is a `jax.named_scope` or a module of Flax.

    Leaves out a value that the distributed program does not compute, and a value
    without a single layout that a sharding can express: its layouts differ from layer
    to layer, it is a partial sum, or its layout is block-cyclic.
    """
    closed = jax.make_jaxpr(traced.function)(*traced.args)
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in closed.in_avals]
    run = jax.jit(jex.jaxpr_as_fun(with_marks(closed)), keep_unused=True)
    module = run.lower(*structs).compiler_ir()
    assert module is not None
    text = module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    parsed = parse_stablehlo(text, "the function")
    held: list[tuple[HloResult, SSAValue]] = []
    made = convert_module(parsed, "the function", None, held)
    found = layouts_of_origins(made.module, held, program)
    named: dict[str, set[Layout]] = {}
    for name, values in (*_scopes(parsed), *_names(parsed)):
        layouts = [found.get(value, set()) for value in values]
        named.setdefault(name, set()).update(*layouts)
    return {
        name: next(iter(layouts))
        for name, layouts in named.items()
        if len(layouts) == 1 and all(_is_plain(layout) for layout in layouts)
    }


def _is_plain(layout: Layout) -> bool:
    return not layout.partial and not any(s.run for dim in layout.dims for s in dim)


def _names(module: ModuleOp) -> Iterator[tuple[str, list[HloResult]]]:
    for op in module.walk():
        if op_name(op) == "stablehlo.custom_call":
            target = attributes.attribute(op, "call_target_name")
            if attributes.text(target) == NAME_TARGET:
                name = attributes.attribute(op, "backend_config")
                yield attributes.text(name), [HloResult(op, 0)]


def _scopes(module: ModuleOp) -> Iterator[tuple[str, list[HloResult]]]:
    """
    Yields each scope with the last value of its forward pass that ops outside the scope
    use. Yields a scope once for each place where it runs.
    """
    leaving: dict[tuple[str, Operation | None], dict[HloResult, None]] = {}
    for op in module.walk():
        if _is_backward(op) or op_name(op) == "stablehlo.constant":
            continue
        scope = _scope(op)
        for index, result in enumerate(op.results):
            users = [
                _scope(use.operation)
                for use in result.uses
                if not _is_backward(use.operation)
            ]
            for outer in _prefixes(scope):
                if any(not _is_within(user, outer) for user in users):
                    key = outer, op.parent_op()
                    leaving.setdefault(key, {})[HloResult(op, index)] = None
    for (scope, _), values in leaving.items():
        # Earlier values leave the scope only to be saved for the backward pass.
        yield scope, [list(values)[-1]]


def _scope(op: Operation) -> str:
    return scope_of_name(name_of(op.location))


def _is_backward(op: Operation) -> bool:
    """
    Whether JAX made `op` by transposition, for the backward pass. JAX records this in
    the op's location.
    """
    return "transpose(" in name_of(op.location)


def _prefixes(scope: str) -> Iterable[str]:
    parts = scope.split(".") if scope else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _is_within(scope: str, outer: str) -> bool:
    return scope == outer or scope.startswith(f"{outer}.")


def constrained(
    function: Callable[..., Any], shardings: Mapping[str, NamedSharding]
) -> Callable[..., Any]:
    """
    Returns `function` with sharding constraints on the values that it names with
    `checkpoint_name`. `shardings` has the shardings by these names. The backward pass
    keeps the shardings of values that JAX saves for it.
    """

    @wraps(function)
    def run(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        changed = with_constraints(closed, shardings)
        leaves = jax.tree_util.tree_leaves(args)
        results = jex.jaxpr_as_fun(changed)(*leaves)
        return jax.tree_util.tree_unflatten(
            jax.tree_util.tree_structure(shape), results
        )

    return run
