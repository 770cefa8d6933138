"""Converts a StableHLO module to a sequential program of `onnx` and `train` ops."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Region
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import NAME, ROLE
from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.stablehlo.converter import Converter
from distir.frontends.stablehlo.parser import parse_stablehlo
from distir.frontends.stablehlo.tensors import LazyTensor
from distir.program import ENTRY, set_argument_attributes
from distir.transforms.canonicalization import canonicalize


def import_stablehlo(text: str, source: str) -> ImportedModel:
    """
    Imports the function `@main` of a StableHLO text. `source` names the text in
    messages. Large constants become arguments with the role `constant`, after the other
    arguments; the latter have no attributes yet. Raises DistIRError if an op cannot be
    converted.
    """
    return convert_module(parse_stablehlo(text, source), source)


def convert_module(module: ModuleOp, source: str) -> ImportedModel:
    """
    Converts a parsed StableHLO module, with the result and the errors of
    `import_stablehlo`.
    """
    converter = Converter(module, source)
    function = converter.function("main")
    block = converter.entry
    for argument in function.body.block.args:
        block.insert_arg(argument.type, len(block.args))
    operands = [LazyTensor.of(value) for value in block.args]
    results = [
        converter.build.whole(result) for result in converter.inline(function, operands)
    ]
    block.add_op(ReturnOp(*results))
    types = (block.arg_types, [result.type for result in results])
    main = FuncOp(ENTRY, types, Region(block))
    weights: dict[str, npt.NDArray[Any]] = {}
    own = [{} for _ in operands]
    for index, (_, array) in enumerate(converter.constants):
        name = f"constant{index}"
        own.append({ROLE: ROLE.attr("constant"), NAME: NAME.attr(name)})
        weights[name] = array
    set_argument_attributes(main, own)
    made = ModuleOp([main, *converter.functions])
    canonicalize(made)
    try:
        made.verify()
    except VerifyException as error:
        raise DistIRError(
            f"{source} gives a program that is not valid: {error}"
        ) from error
    return ImportedModel(made, weights)
