"""Converts a StableHLO module to a sequential program of `onnx` and `train` ops."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from distir.dialects.dist_attributes import NAME, ROLE
from distir.errors import DistIRError
from distir.frontends.imported_model import ImportedModel
from distir.frontends.stablehlo.converter import Converter
from distir.frontends.stablehlo.parser import parse_stablehlo
from distir.frontends.stablehlo.registry import HloResult
from distir.frontends.stablehlo.requests import ShardingRequests
from distir.frontends.stablehlo.sharding import Sharding
from distir.frontends.stablehlo.tensors import LazyTensor
from distir.program import ENTRY, set_argument_attributes
from distir.transforms.canonicalization import canonicalize


def import_stablehlo(text: str, source: str) -> ImportedModel:
    """
    Imports the function `@main` of a StableHLO text. `source` names the text in
    messages. Large constants become arguments with the role `constant`, after the
    function's own arguments, which have no attributes yet. Raises DistIRError if an op
    cannot be converted.
    """
    return convert_module(parse_stablehlo(text, source), source)


def _constrained(
    block: Block, requests: ShardingRequests, value: SSAValue, asked: Sharding | None
) -> SSAValue:
    """
    Requests the sharding `asked` for the result `value` of a function. Returns the
    value that the function must return instead of `value`.
    """
    constrain = None if asked is None else requests.constrained(value, asked)
    if constrain is None:
        return value
    block.add_op(constrain)
    return constrain.result


def convert_module(
    module: ModuleOp,
    source: str,
    requests: ShardingRequests | None = None,
    held: list[tuple[HloResult, SSAValue]] | None = None,
) -> ImportedModel:
    """
    Converts a parsed StableHLO module to a sequential program. `requests` collects the
    shardings that the program requests for results and inner values. Appends to `held`
    each result of a StableHLO op with the program's value for it. Raises DistIRError if
    an op cannot be converted.
    """
    converter = Converter(module, source, requests)
    function = converter.function("main")
    block = converter.entry
    for argument in function.body.block.args:
        block.insert_arg(argument.type, len(block.args))
    operands = [LazyTensor.of(value) for value in block.args]
    results = [
        converter.build.whole(result) for result in converter.inline(function, operands)
    ]
    if requests is not None:
        results = [
            _constrained(block, requests, value, asked)
            for value, asked in zip(results, requests.results, strict=True)
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
    if held is not None:
        held += converter.held
    made = ModuleOp([main, *converter.functions])
    canonicalize(made)
    try:
        made.verify()
    except VerifyException as error:
        raise DistIRError(
            f"{source} gives a program that is not valid: {error}"
        ) from error
    return ImportedModel(made, weights, shows_locations=True)
