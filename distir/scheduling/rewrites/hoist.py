"""
Replaces parameters that a function concatenates by one argument of the entry function.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import NAME, REPACKED
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.program import (
    argument_attributes,
    argument_names,
    calls_of,
    entry_function,
    free_name,
    made_with,
    name_hint,
    replace_call,
    set_argument_attributes,
)
from distir.program.repacking import Repacked
from distir.transforms.patterns.raising import drop_arguments


def hoist(
    module: ModuleOp, joined: Sequence[Operation], name: str, groups: int = 1
) -> None:
    """
    Moves concatenations of arguments out of their functions, up to the entry function,
    where one new argument replaces each concatenation.

    - `joined`: the `onnx.Concat` ops;
    - `name`: replaces, in the name of a new argument, the part in which the names of
      the concatenated arguments differ;
    - `groups`: the number of groups into which the new argument interleaves the parts
      (`Repacked`).

    Arguments that have no other use are removed.
    """
    entry = entry_function(module)
    pending = list(joined)
    parts_of: dict[FuncOp, dict[SSAValue, None]] = {}
    made: dict[tuple[SSAValue, ...], SSAValue] = {}
    while pending:
        op = pending.pop(0)
        function, parts = op.parent_op(), tuple(op.operands)
        assert isinstance(function, FuncOp) and isinstance(op, OnnxOp)
        parts_of.setdefault(function, {}).update(dict.fromkeys(parts))
        if function is not entry or parts not in made:
            if function is not entry:
                pending += _join_in_calls(function, op)
            count = groups if function is entry else None
            made[parts] = _add_argument(function, op, name, count)
        op.results[0].replace_all_uses_with(made[parts])
        Rewriter.erase_op(op)
    for function, parts in parts_of.items():
        unused = [a for a in function.args if a in parts and a.first_use is None]
        drop_arguments(function, unused)


def _join_in_calls(function: FuncOp, op: OnnxOp) -> list[Operation]:
    """
    Concatenates the operands of each call of `function` instead of the function's
    arguments, and passes the result as one more argument. Returns the new `onnx.Concat`
    ops.
    """
    found: list[Operation] = []
    indices = [v.index for v in op.operands if isinstance(v, BlockArgument)]
    for call in calls_of(function):
        copy = made_with(op, [call.operands[i] for i in indices], op.result_types)
        Rewriter.insert_op(copy, InsertPoint.before(call))
        operands = [*call.operands, copy.results[0]]
        replace_call(call, function.sym_name.data, operands, call.result_types)
        found.append(copy)
    return found


def _add_argument(
    function: FuncOp, op: OnnxOp, name: str, groups: int | None
) -> SSAValue:
    """
    Adds an argument at the end of `function`, to replace the concatenation `op`, and
    returns the argument. In the entry function, `groups` is the number of groups that
    interleave the parts, which the argument's attributes describe; in other functions
    it is None.
    """
    attributes, names = argument_attributes(function), argument_names(function)
    indices = [v.index for v in op.operands if isinstance(v, BlockArgument)]
    own: dict[str, Attribute] = dict(attributes[indices[0]])
    parts, taken = [names[i] for i in indices], set(names)
    title = free_name(taken, _common_name(parts, name))
    own[NAME] = NAME.attr(title)
    dim = op.attribute("axis")
    sizes = tuple(shape_of(value.type)[dim] for value in op.operands)
    if groups is not None:
        own[REPACKED] = Repacked(dim, tuple(parts), sizes, groups).attribute
    argument = function.body.block.insert_arg(op.result_types[0], len(names))
    argument.name_hint = name_hint(title.replace(".*", ""))
    function.update_function_type()
    set_argument_attributes(function, [*attributes, own])
    return argument


def _common_name(parts: Sequence[str], name: str) -> str:
    """
    Returns the common name of `parts`, with `name` in place of the part in which they
    differ, such as `h.0.qkv.weight`.
    """
    split = [part.split(".") for part in parts]
    start = _same_parts(split)
    end = _same_parts([own[start:][::-1] for own in split])
    first = split[0]
    return ".".join([*first[:start], name, *(first[-end:] if end else [])])


def _same_parts(paths: Sequence[Sequence[str]]) -> int:
    """Returns the number of leading parts that all paths have in common."""
    columns = enumerate(zip(*paths, strict=False))
    different = (i for i, column in columns if len(set(column)) > 1)
    return next(different, min(map(len, paths)))
