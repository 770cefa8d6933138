"""
Imports a StableHLO file, the text of `jax.jit(f).lower(...).as_text()`.

Names come from the text: those of arguments from their locations (`debug_info=True`),
those of results from `jax.result_info`. A result replaces an argument in the next step
if that argument was donated for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.importer import convert_module
from distir.frontends.stablehlo.parser import name_of, parse_stablehlo
from distir.frontends.stablehlo.roles import Leaves, describe
from distir.program.naming import unique_names

SUFFIX = ".mlir"
"""The suffix of files that are read as StableHLO."""

_PART = re.compile(r"[A-Za-z0-9_]+")
_SHARDINGS = ("sdy.sharding", "mhlo.sharding")
_CONSTRAINTS = ("sdy.sharding_constraint", "sdy.mesh")


def import_stablehlo_file(path: Path) -> ImportedModel:
    """
    Imports the StableHLO file `path`. Shardings in it are ignored, and a note says so.
    Raises DistIRError if the file cannot be read or an op cannot be converted.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DistIRError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}"
        ) from error
    if "stablehlo" not in text and "@jit_" not in text:
        raise DistIRError(
            f"{path} has no StableHLO; if it is a program already, it needs no import: give "
            f"it to `distir distribute`"
        )
    module = parse_stablehlo(text, str(path))
    found = [
        op for op in module.ops if isinstance(op, FuncOp) and op.sym_name.data == "main"
    ]
    if not found:
        raise DistIRError(f"{path} has no function @main; a program begins there")
    [function] = found
    given = _dictionaries(function.arg_attrs, len(function.function_type.inputs))
    returned = _dictionaries(function.res_attrs, len(function.function_type.outputs))
    asked = sum(any(name in own for name in _SHARDINGS) for own in given)
    asked += sum(op_name(op) in _CONSTRAINTS for op in module.walk())
    names = [
        _dotted(name_of(arg.location)) or f"arg{arg.index}"
        for arg in function.body.block.args
    ]
    results = [
        _dotted(attributes.text(own.get("jax.result_info"))) or f"result.{index}"
        for index, own in enumerate(returned)
    ]
    updated: dict[int, int] = {}
    for index, own in enumerate(given):
        if "tf.aliasing_output" in own:
            updated[attributes.integer(own["tf.aliasing_output"])] = index
    made = convert_module(module, str(path))
    arguments = Leaves(unique_names(names), _kinds(function.function_type.inputs.data))
    inputs = set(range(len(names))) - set(updated.values())
    kinds = _kinds(function.function_type.outputs.data)
    describe(
        made.module, arguments, Leaves(unique_names(results), kinds), updated, inputs
    )
    if asked:
        made.notes = [
            f"{asked} shardings in {path} are not read; ask for them with --shard"
        ]
    if not updated:
        made.notes = [
            *made.notes,
            f"{path} donates no argument, so that all count as inputs; for a training step "
            f"lower jax.jit(step, donate_argnums=...)",
        ]
    return made


def _dictionaries(attr: Attribute | None, length: int) -> list[dict[str, Attribute]]:
    """
    Returns the attributes of the `length` arguments or results of a function, by name.
    """
    if not isinstance(attr, ArrayAttr):
        return [{} for _ in range(length)]
    found: Sequence[Any] = attr.data
    return [dict(entry.data) for entry in found]


def _dotted(name: str) -> str:
    """Returns a name of JAX as a dotted name: `state.0.w` for `state[0]['w']`."""
    return ".".join(_PART.findall(name))


def _kinds(types: Sequence[Attribute]) -> list[tuple[tuple[int, ...], str]]:
    """Returns the shape and the element type of each tensor type."""
    return [
        (type_.get_shape(), str(type_.element_type))
        for type_ in types
        if isinstance(type_, TensorType)
    ]
