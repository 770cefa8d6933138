"""
Imports a StableHLO file, the text of `jax.jit(f).lower(...).as_text()`.

Arguments are named by their locations (`debug_info=True`), results by
`jax.result_info`. If JAX may reuse the memory of an argument for a result (the argument
was donated), the result replaces the argument in the next step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.importer import convert_module
from distir.frontends.stablehlo.parser import name_of, parse_stablehlo
from distir.frontends.stablehlo.requests import entries, read_requests
from distir.frontends.stablehlo.roles import Leaves, common_end, describe
from distir.program.naming import unique_names

SUFFIX = ".mlir"
"""The suffix of files that are read as StableHLO."""

_PART = re.compile(r"[A-Za-z0-9_]+")


def import_stablehlo_file(
    path: Path, *, ignore_shardings: bool = False
) -> ImportedModel:
    """
    Imports the StableHLO file `path`. The shardings in the file, of Shardy or GSPMD,
    become requests of the program, unless `ignore_shardings` is set. Raises DistIRError
    if the file cannot be read, an op cannot be converted, or no layout can express a
    sharding.
    """
    module = read_module(path)
    function = entry_of(module, str(path))
    given = entries(function.arg_attrs, len(function.function_type.inputs))
    returned = entries(function.res_attrs, len(function.function_type.outputs))
    names = [
        _dotted(name_of(arg.location)) or f"arg{arg.index}"
        for arg in function.body.block.args
    ]
    result_names = [
        _dotted(attributes.text(own.get("jax.result_info"))) or f"result.{index}"
        for index, own in enumerate(returned)
    ]
    arguments = Leaves(unique_names(names), _kinds(function.function_type.inputs.data))
    results = Leaves(
        unique_names(result_names), _kinds(function.function_type.outputs.data)
    )
    updated = _updated(given, arguments, results)
    inputs = set(range(len(names))) - set(updated.values())
    requests = None
    if not ignore_shardings:
        requests = read_requests(module, function, inputs, str(path))
    made = convert_module(module, str(path), requests)
    describe(made.module, arguments, results, updated, inputs)
    notes: list[str] = []
    if requests is not None:
        requests.apply(made.module)
        notes += requests.notes(str(path))
    if not updated:
        notes.append(
            f"{path} donates no argument, so that all count as inputs; for a training step "
            f"lower jax.jit(step, donate_argnums=...)"
        )
    made.notes = notes
    return made


def read_module(path: Path) -> ModuleOp:
    """
    Parses the StableHLO file `path`. Raises DistIRError if the file cannot be read or
    parsed.
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
    return parse_stablehlo(text, str(path))


def entry_of(module: ModuleOp, source: str) -> FuncOp:
    """
    Returns the function `@main` of a StableHLO module. Raises DistIRError if the module
    has no such function; `source` names the module in the error's message.
    """
    for op in module.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise DistIRError(f"{source} has no function @main; a program begins there")


def _updated(
    given: Sequence[Mapping[str, Attribute]], arguments: Leaves, results: Leaves
) -> dict[int, int]:
    """
    Maps the index of each result that replaces a donated argument to the index of this
    argument. JAX records which results alias which arguments. With a mesh, JAX records
    only which arguments are donated. A result then replaces a donated argument of its
    type: the argument whose name shares the longest ending with the result's name, or
    the first of several.
    """
    found: dict[int, int] = {}
    donors: list[int] = []
    for index, own in enumerate(given):
        if "tf.aliasing_output" in own:
            found[attributes.integer(own["tf.aliasing_output"])] = index
        elif "jax.buffer_donor" in own:
            donors.append(index)
    for result, kind in enumerate(results.kinds):
        alike = [donor for donor in donors if arguments.kinds[donor] == kind]
        if result in found or not alike:
            continue
        ends = [common_end(results.names[result], arguments.names[i]) for i in alike]
        chosen = alike[ends.index(max(ends))]
        donors.remove(chosen)
        found[result] = chosen
    return found


def _dotted(name: str) -> str:
    """Converts a name of JAX to a dotted name: `state[0]['w']` to `state.0.w`."""
    return ".".join(_PART.findall(name))


def _kinds(types: Sequence[Attribute]) -> list[tuple[tuple[int, ...], str]]:
    """Returns the shape and the element type of each tensor type."""
    return [
        (type_.get_shape(), str(type_.element_type))
        for type_ in types
        if isinstance(type_, TensorType)
    ]
