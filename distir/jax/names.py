"""
Values that a JAX function names with `checkpoint_name`.

JAX drops these names when it lowers a function. `with_marks` turns each name into a
custom call, which an import can find. `with_constraints` replaces names by sharding
constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
from jax.interpreters import mlir
from jax.sharding import NamedSharding
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from distir.frontends.stablehlo.ops.sharding import NAME_TARGET

Change = Callable[[Any], Any]
"""Returns the equation to put in the place of an equation of a jaxpr."""

_MARK = jex.Primitive("distir_name")


def _same(value: Any, **parameters: Any) -> Any:
    return value


def _lowered(context: Any, value: Any, *, name: str) -> Sequence[Any]:
    made = stablehlo.CustomCallOp(
        [value.type],
        [value],
        call_target_name=ir.StringAttr.get(NAME_TARGET),
        backend_config=ir.StringAttr.get(name),
    )
    return made.results


_MARK.def_abstract_eval(_same)
_MARK.def_impl(_same)
mlir.register_lowering(_MARK, _lowered)


def named_values(jaxpr: Any) -> dict[str, None]:
    """
    Returns the names of values in a jaxpr and in the jaxprs inside it, in order, as the
    keys of a dictionary.
    """
    found: dict[str, None] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "name":
            found[equation.params["name"]] = None
        for inner in jex.jaxprs_in_params(equation.params):
            found |= named_values(inner)
    return found


def with_marks(closed: Any) -> Any:
    """Returns a copy of a closed jaxpr in which names lower to custom calls."""

    def change(equation: Any) -> Any:
        return equation.replace(
            primitive=_MARK, params={"name": equation.params["name"]}
        )

    return _changed(closed, change)


def with_constraints(closed: Any, shardings: Mapping[str, NamedSharding]) -> Any:
    """
    Returns a copy of a closed jaxpr in which each value named in `shardings` has the
    sharding given there.
    """

    def change(equation: Any) -> Any:
        asked = shardings.get(equation.params["name"])
        if asked is None:
            return equation
        [value] = equation.invars
        like = jax.ShapeDtypeStruct(value.aval.shape, value.aval.dtype)

        def constrain(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x, asked)

        made = jax.make_jaxpr(constrain)(like)
        [constraint] = made.eqns
        return equation.replace(
            primitive=constraint.primitive, params=constraint.params
        )

    return _changed(closed, change)


def _changed(value: Any, change: Change) -> Any:
    """
    Returns a copy of a jaxpr, a closed jaxpr, or a tuple of them, with `change` applied
    to every equation that names a value. Returns any other value unchanged.
    """
    if isinstance(value, jex.ClosedJaxpr):
        return value.replace(jaxpr=_changed(value.jaxpr, change))
    if isinstance(value, tuple | list):
        return type(value)(_changed(each, change) for each in value)
    if not isinstance(value, jex.Jaxpr) or not named_values(value):
        return value
    equations: list[Any] = []
    for equation in value.eqns:
        if equation.primitive.name == "name":
            equations.append(change(equation))
            continue
        inner = {
            key: _changed(each, change) if _holds_jaxprs(each) else each
            for key, each in equation.params.items()
        }
        equations.append(equation.replace(params=inner))
    return value.replace(eqns=equations)


def _holds_jaxprs(value: Any) -> bool:
    kinds = jex.ClosedJaxpr | jex.Jaxpr
    if isinstance(value, tuple | list):
        return bool(value) and all(isinstance(each, kinds) for each in value)
    return isinstance(value, kinds)
