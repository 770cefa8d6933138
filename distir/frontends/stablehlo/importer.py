"""Turns a StableHLO module into a sequential program of `onnx` and `train` ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Region
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import NAME, ROLE
from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.stablehlo.converter import Converter
from distir.frontends.stablehlo.parser import parse_stablehlo
from distir.frontends.stablehlo.tensors import Tensor
from distir.program import ENTRY, name_hint, set_argument_attributes
from distir.program.arguments import set_result_attributes
from distir.transforms.canonicalization import canonicalize

Attributes = Mapping[str, Attribute]


@dataclass(frozen=True)
class Signature:
    """
    What is known of a function besides its ops: the attributes of its arguments and
    results, such as roles and names.
    """

    arguments: Sequence[Attributes] = field(default_factory=tuple[Attributes, ...])
    results: Sequence[Attributes] = field(default_factory=tuple[Attributes, ...])


def import_stablehlo(
    text: str, signature: Signature, source: str, entry: str = "main"
) -> ImportedModel:
    """
    Imports the function `entry` of a StableHLO text. `source` is the text's name in
    messages. Large constants become arguments with the role `constant`, behind the
    others. Raises DistIRError if an op is not known.
    """
    return import_module(parse_stablehlo(text, source), signature, source, entry)


def import_module(
    module: ModuleOp, signature: Signature, source: str, entry: str = "main"
) -> ImportedModel:
    """Imports a StableHLO module that was read, as `import_stablehlo` does."""
    converter = Converter(module, source)
    function = converter.function(entry)
    block = converter.entry
    for argument in function.body.block.args:
        value = block.insert_arg(argument.type, len(block.args))
        if len(block.args) <= len(signature.arguments):
            name = NAME.of(signature.arguments[len(block.args) - 1])
            value.name_hint = None if name is None else name_hint(name)
    operands = [Tensor.of(value) for value in block.args]
    results = [
        converter.build.whole(result) for result in converter.inline(function, operands)
    ]
    block.add_op(ReturnOp(*results))
    types = (block.arg_types, [result.type for result in results])
    main = FuncOp(ENTRY, types, Region(block))
    weights: dict[str, npt.NDArray[Any]] = {}
    arguments = [dict(attributes) for attributes in signature.arguments]
    arguments += [{} for _ in range(len(operands) - len(arguments))]
    for index, (_, array) in enumerate(converter.constants):
        name = f"constant{index}"
        arguments.append({ROLE: ROLE.attr("constant"), NAME: NAME.attr(name)})
        weights[name] = array
    set_argument_attributes(main, arguments)
    set_result_attributes(main, [dict(a) for a in signature.results])
    made = ModuleOp([main, *converter.functions])
    canonicalize(made)
    try:
        made.verify()
    except VerifyException as error:
        raise DistIRError(
            f"{source} gives a program that is not valid: {error}"
        ) from error
    return ImportedModel(made, weights)
