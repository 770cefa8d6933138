"""Changes of a program: ops and calls made anew, results set, dead ops erased."""

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
    """Replaces the contents of a module by those of another one."""
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
    Erases calls and pure ops without uses, last one first, except for ops that are marked
    `KEPT`.
    """
    for op in reversed(list(block.ops)):
        if is_removable(op) and not any(list(r.uses) for r in op.results):
            block.erase_op(op)


def is_removable(op: Operation) -> bool:
    """Whether an op may be removed if nothing uses its results."""
    # Functions of a program have no effects: they are made of tensor ops. Collectives of a
    # rank must stay only where the other ranks do not remove them too, as DistIR does.
    pure = isinstance(op, CallOp | CollectiveOp) or is_side_effect_free(op)
    return pure and KEPT not in op.attributes


def drop_unused_results(module: ModuleOp) -> dict[str, list[int]]:
    """
    Removes results of private functions that no call uses. Returns, for each function that
    lost some, the indices of those that it kept.
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
    Returns a new op that is the same on other operands, with other result types. Raises
    DistIRError for an op with a body that these would change (`check_body`).
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
    )


def _retyped(
    op: Operation,
    attributes: Mapping[str, Attribute],
    result_types: Sequence[Attribute],
) -> dict[str, Attribute]:
    """
    Returns attributes of an op that gets other result types. Constants of other dialects
    (`arith.constant`) have the type of their result, which then changes with it.
    """
    found = dict(attributes)
    if op.operands or len(op.results) != 1 or op.name.startswith("onnx."):
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
    """Returns a new call of another function in place of a call."""
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
    Replaces a call by one of another function, whose first results replace those of the
    call. Returns the new call.
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
    Makes a function return these values, described by these attribute dictionaries (by
    default without attributes), and brings its type up to date, that of its arguments too.
    """
    Rewriter.replace_op(return_op(function), ReturnOp(*values), [])
    function.update_function_type()
    set_result_attributes(function, attributes)
