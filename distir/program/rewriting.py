"""Helpers that change programs: rebuild ops and calls, set results, erase dead ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    ModuleOp,
    SymbolRefAttr,
    TensorType,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import is_side_effect_free

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist_attributes import KEPT
from distir.program.arguments import set_result_attributes
from distir.program.functions import check_body, functions, return_op


def replace_program(module: ModuleOp, other: ModuleOp) -> None:
    """
    Replaces the contents and attributes of `module` by those of the module `other`. The
    module `other` is empty afterwards.
    """
    for op in list(module.body.block.ops):
        op.detach()
        op.drop_all_references()
    for op in list(other.body.block.ops):
        op.detach()
        module.body.block.add_op(op)
    module.attributes.clear()
    module.attributes.update(other.attributes)


def erase_dead(block: Block) -> None:
    """
    Erases calls, collectives and side-effect-free ops whose results are unused, from
    the last op to the first. Ops with the attribute `KEPT` stay.
    """
    for op in reversed(list(block.ops)):
        if not any(r.first_use for r in op.results) and is_removable(op):
            block.erase_op(op)


def is_removable(op: Operation) -> bool:
    """Whether an op can be removed once its results are unused."""
    # Functions of a program have no effects: they are made of tensor ops. Collectives of a
    # rank must stay only where the other ranks do not remove them too, as DistIR does.
    pure = isinstance(op, CallOp | CollectiveOp) or is_side_effect_free(op)
    return pure and KEPT not in op.attributes


def drop_unused_results(module: ModuleOp) -> dict[str, list[int]]:
    """
    Removes the results of called functions that no call uses. Returns, by the name of
    each changed function, the old indices of the results that it kept.
    """
    dropped: dict[str, list[int]] = {}
    calls: dict[str, list[CallOp]] = {}
    for op in module.walk():
        if isinstance(op, CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    known = functions(module)
    for name, sites in calls.items():
        function = known[name]
        returned = return_op(function)
        used = [
            i
            for i in range(len(returned.operands))
            if any(list(site.results[i].uses) for site in sites)
        ]
        if len(used) == len(returned.operands):
            continue
        dropped[name] = used
        outputs = [returned.operands[i] for i in used]
        set_results(function, outputs)
        for site in sites:
            call = called(site, name, site.operands, [v.type for v in outputs])
            kept: list[SSAValue | None] = [None] * len(site.results)
            for new, old in zip(call.results, used, strict=True):
                new.name_hint = site.results[old].name_hint
                kept[old] = new
            Rewriter.replace_op(site, call, kept)
    return dropped


def made_with(
    op: Operation, operands: Sequence[SSAValue], result_types: Sequence[Attribute]
) -> Operation:
    """
    Returns a new op of the same kind and attributes as `op`, on `operands` and with
    results of `result_types`. Raises DistIRError if the body of `op` depends on the old
    operands or result types (see `check_body`).
    """
    regions: list[Region] = []
    if op.regions:
        check_body(op)
        regions = [region.clone() for region in op.regions]
    return type(op).create(
        operands=operands,
        result_types=result_types,
        properties=_retyped(op, op.properties, result_types),
        attributes=_retyped(op, op.attributes, result_types),
        regions=regions,
        location=op.location,
    )


def _retyped(
    op: Operation,
    attributes: Mapping[str, Attribute],
    result_types: Sequence[Attribute],
) -> dict[str, Attribute]:
    """
    Returns the attributes of an op for new result types. The value of a constant such
    as `arith.constant` has the type of the result, and therefore gets the new type.
    """
    found = dict(attributes)
    if op.name.startswith("onnx.") or op.operands or len(op.results) != 1:
        return found
    (before,), (after,) = op.result_types, result_types
    for name, own in found.items():
        if (
            isinstance(own, DenseIntOrFPElementsAttr)
            and own.type == before
            and isinstance(before, TensorType)
            and isinstance(after, TensorType)
            and before.shape == after.shape
        ):
            found[name] = DenseIntOrFPElementsAttr(after, own.data)
    return found


def called(
    op: CallOp,
    name: str,
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
) -> CallOp:
    """
    Returns a new call of the function `name`, with the attributes of the call `op`. The
    new call is not inserted into a block.
    """
    return CallOp.create(
        operands=operands,
        result_types=result_types,
        properties={"callee": SymbolRefAttr(name)},
        attributes=op.attributes.copy(),
    )


def replace_call(
    call: CallOp,
    name: str,
    operands: Sequence[SSAValue],
    result_types: Sequence[Attribute],
) -> CallOp:
    """
    Replaces `call` by a call of the function `name`, and returns the new call. The
    first results of the new call replace the results of the old call.
    """
    new = called(call, name, operands, result_types)
    Rewriter.insert_op(new, InsertPoint.before(call))
    for before, after in zip(call.results, new.results, strict=False):
        after.name_hint = before.name_hint
        before.replace_all_uses_with(after)
    Rewriter.erase_op(call)
    return new


def set_results(
    function: FuncOp,
    values: Sequence[SSAValue],
    attributes: Sequence[dict[str, Attribute]] = (),
) -> None:
    """
    Makes a function return `values`, with one dictionary of `attributes` for each value
    (by default none). Updates the type of the function, including the types of its
    arguments.
    """
    Rewriter.replace_op(return_op(function), ReturnOp(*values), [])
    function.update_function_type()
    set_result_attributes(function, attributes)
