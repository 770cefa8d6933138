"""Helpers of tests for programs: parsing and printing, and the types that ONNX infers."""

from __future__ import annotations

import onnx
from onnx import helper, shape_inference
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.ir import Operation
from xdsl.parser import Parser

from distir.dialects import get_all_dialects
from distir.dialects.onnx import OPERATORS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import type_from_proto, type_to_proto
from distir.dialects.onnx_ops.versions import OPSET_IMPORTS
from distir.program import argument_names, argument_roles, entry_function


def parse(text: str) -> ModuleOp:
    """Returns the module of a text."""
    context = Context()
    for dialect in (Builtin, Func, *(load() for load in get_all_dialects().values())):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def round_trip(module: ModuleOp) -> None:
    """Checks that a module is valid and that its text means the same module."""
    module.verify()
    again = parse(str(module))
    again.verify()
    assert module.is_structurally_equivalent(again)


def ops_of(module: ModuleOp, *names: str) -> list[OnnxOp]:
    """Returns the operators of a module; if ONNX names are given, only those."""
    kinds = tuple(OPERATORS["", name] for name in names) or OnnxOp
    return [op for op in module.walk() if isinstance(op, kinds)]


def names_by_role(module: ModuleOp) -> dict[str, list[str]]:
    """Returns the names of the entry function's arguments, by role."""
    main = entry_function(module)
    found: dict[str, list[str]] = {}
    for name, role in zip(argument_names(main), argument_roles(main), strict=True):
        found.setdefault(role, []).append(name)
    return found


def inferred_types(op: OnnxOp) -> list[object]:
    """
    Returns the result types that ONNX infers for an op from its operands and constants.
    """
    names = [f"i{k}" for k in range(len(op.input_values))]
    inputs = [n if v else "" for n, v in zip(names, op.input_values, strict=True)]
    outputs = [f"o{k}" for k in range(len(op.results))]
    node = helper.make_node(op.SCHEMA.name, inputs, outputs, domain=op.SCHEMA.domain)
    for name, value in op.onnx_attributes().items():
        is_array = hasattr(value, "dtype")
        node.attribute.append(
            helper.make_attribute(
                name, onnx.numpy_helper.from_array(value) if is_array else value
            )
        )
    present = [(n, v) for n, v in zip(names, op.input_values, strict=True) if v]
    found = shape_inference.infer_node_outputs(
        op.SCHEMA,
        node,
        {n: type_to_proto(v.type) for n, v in present},
        {
            n: onnx.numpy_helper.from_array(v.owner.attribute("value"))
            for n, v in present
            if isinstance(v.owner, Operation) and v.owner.name == "onnx.Constant"
        },
        opset_imports=OPSET_IMPORTS,
    )
    return [type_from_proto(found[o]) for o in outputs]
