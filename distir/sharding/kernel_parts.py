"""
Runs the reference of a kernel on parts of its operands, and proves its sharding rule.

Each factor that the rule allows to be split is split, and layouts are inferred through
the reference. The rule is right if three things hold: no op of the reference needs
communication, each op stays the same op on its part, and the results have the layouts
that the rule states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.dist import Layout, Shard, with_layout
from distir.dialects.kernel import KernelDefOp
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.program import describe, made_with
from distir.sharding.kernel_rule import KernelRule, parse_rule
from distir.sharding.layout import local_type
from distir.sharding.local import local_ops
from distir.sharding.mesh import Mesh
from distir.sharding.rule import (
    Assignment,
    Rule,
    dim_shards,
    inference_of,
    layout_for,
    rule_for,
)

_MESH = "parts"

MOST_PARTS = 1 << 16
"""The largest number of parts of a dimension that is tried."""


@dataclass(frozen=True)
class ReferencePart:
    """
    A kernel's reference on one device.

    `block` takes the device's operands, and its values `results` are the device's
    results. `layouts` are the layouts of the whole results. `forms` pairs each op of
    the reference with the ops that compute it on the device.
    """

    block: Block
    results: tuple[SSAValue, ...]
    layouts: tuple[Layout, ...]
    forms: tuple[tuple[Operation, tuple[Operation, ...]], ...]
    split: frozenset[Operation]
    """The ops of the reference whose work is divided among devices."""


def rule_of(kernel: KernelDefOp) -> Rule:
    """
    Returns the sharding rule of a kernel for the shapes of its reference. Raises
    DistIRError if the rule cannot be read or does not fit the shapes.
    """
    block = kernel.reference.block
    return parse_rule(kernel.rule.data).rule(
        [shape_of(arg.type) for arg in block.args],
        [shape_of(value.type) for value in kernel.result.values],
        "" if kernel.flops is None else kernel.flops.data,
    )


def reference_part(
    block: Block, rule: Rule, parts: Mapping[int, int], *, last: bool = False
) -> ReferencePart | str:
    """
    Returns the reference on the first device (on the last one with `last`) if the
    factors of the rule are split. `parts` maps each split factor to its number of
    parts. Returns the reason as a string if an op would need communication.
    """
    axes = tuple((f"f{factor}", count) for factor, count in parts.items())
    mesh = Mesh(_MESH, axes, tuple(range(prod(parts.values()))))
    coordinates = {axis: size - 1 if last else 0 for axis, size in axes}
    assignment: Assignment = {f: (Shard(f"f{f}", None),) for f in parts}
    whole, meshes = Layout(_MESH), {_MESH: mesh}
    layouts: dict[SSAValue, Layout] = {}
    arguments: list[TensorType] = []
    for arg, dims in zip(block.args, rule.operands, strict=True):
        assert isinstance(arg.type, TensorType)
        layouts[arg] = layout_for(dims, rule, assignment, mesh)
        arguments.append(with_layout(arg.type, layouts[arg]))
    distributed = Block(arg_types=arguments)
    local = Block(arg_types=[local_type(type_, meshes) for type_ in arguments])
    values = dict[SSAValue, SSAValue](zip(block.args, distributed.args, strict=True))
    local_values = dict[SSAValue, SSAValue](zip(block.args, local.args, strict=True))
    forms: list[tuple[Operation, tuple[Operation, ...]]] = []
    divided: set[Operation] = set()
    for op in block.ops:
        if op is block.last_op:
            break
        given = [layouts[value] for value in op.operands]
        inferred = inference_of(rule_for(op), given, mesh)
        if isinstance(inferred, str):
            return f"{describe(op)}: {inferred}"
        if any(inferred.assignment.values()):
            divided.add(op)
        found = inferred.results if inferred.results else (whole,) * len(op.results)
        types = [
            with_layout(r.type, layout) if isinstance(r.type, TensorType) else r.type
            for r, layout in zip(op.results, found, strict=True)
        ]
        new = made_with(op, [values[v] for v in op.operands], types)
        distributed.add_op(new)
        mine = local_ops(
            new, [local_values[v] for v in op.operands], meshes, coordinates
        )
        local.add_ops(mine)
        forms.append((op, tuple(mine)))
        for old, each, part, layout in zip(
            op.results, new.results, mine[-1].results, found, strict=True
        ):
            values[old], local_values[old], layouts[old] = each, part, layout
    end = block.last_op
    assert end is not None
    return ReferencePart(
        local,
        tuple(local_values[v] for v in end.operands),
        tuple(layouts[v] for v in end.operands),
        tuple(forms),
        frozenset(divided),
    )


def split_problem(block: Block, rule: Rule, factor: int) -> str | None:
    """
    Returns the reason why the reference cannot work on parts of `factor`, or None if it
    can. Two splits are tried: into the fewest parts, and into parts of one element (at
    most `MOST_PARTS` parts).
    """
    size = rule.factors[factor].size
    few, many = smallest_divisor(size), _largest_divisor(size)
    if few > MOST_PARTS:
        return (
            f"there is no way to split {size} elements evenly into up to {MOST_PARTS}"
        )
    counts = dict.fromkeys((few, many))
    problems = (_problem(block, rule, factor, n) for n in counts if n > 1)
    return next((found for found in problems if found is not None), None)


def _problem(block: Block, rule: Rule, factor: int, count: int) -> str | None:
    """
    Returns the reason why the reference cannot work on `count` parts of `factor`, or
    None if it can.
    """
    parts = {factor: count}
    first, last = (reference_part(block, rule, parts, last=at) for at in (False, True))
    if isinstance(first, str) or isinstance(last, str):
        return first if isinstance(first, str) else str(last)
    for (op, mine), (_, other) in zip(first.forms, last.forms, strict=True):
        helpers = [form for form in mine if form is not mine[-1]]
        if mine[-1].name != op.name or any(h.name != "onnx.Constant" for h in helpers):
            return (
                f"{describe(op)} on a part is not the same op "
                f"({', '.join(form.name for form in mine)})"
            )
        if list(map(_content, mine)) != list(map(_content, other)):
            return f"{describe(op)} needs to know which part it works on"
    mesh = Mesh(_MESH, ((f"f{factor}", parts[factor]),), tuple(range(parts[factor])))
    assignment: Assignment = {factor: (Shard(f"f{factor}", None),)}
    reduced = rule.factors[factor].kind == "reduction"
    for i, (dims, layout) in enumerate(zip(rule.results, first.layouts, strict=True)):
        over = reduced or i in rule.partial_results.get(factor, ())
        partial = [(f"f{factor}", rule.factors[factor].reduction)] if over else []
        expected = layout_for(dims, rule, assignment, mesh, partial)
        if layout != expected:
            return (
                f"result {i} has layout {_plain(layout)} then, but the rule says "
                f"{_plain(expected)}"
            )
    if not any(dim_shards(d, rule, assignment, mesh) for o in rule.operands for d in o):
        return "no operand is split with it"
    return None


def check_rule(kernel: KernelDefOp) -> None:
    """
    Proves the rule of a kernel: the reference can be split along each factor that the
    rule allows to be split. If this is not so, raises DistIRError; the message names
    the factor to keep whole.
    """
    what = f"kernel @{kernel.symbol}"
    try:
        rule = rule_of(kernel)
    except DistIRError as error:
        raise DistIRError(f"{what}: {error}") from error
    named = parse_rule(kernel.rule.data)
    for factor, name in enumerate(named.names):
        if name in named.kept:
            continue
        problem = split_problem(kernel.reference.block, rule, factor)
        if problem is not None:
            raise DistIRError(
                f"{what}: its rule lets {name!r} be split, but the reference cannot work on "
                f"parts of it without communication: {problem}; keep {name!r} whole "
                f"(`keep={' '.join(sorted(named.kept | {name}))!r}`)"
            )


def proved(block: Block, rule: KernelRule) -> KernelRule:
    """
    Returns the rule with further factors kept whole: all factors along which the
    reference cannot be split.
    """
    shapes = [shape_of(arg.type) for arg in block.args]
    end = block.last_op
    assert end is not None
    plain = rule.rule(shapes, [shape_of(value.type) for value in end.operands])
    wrong = [
        name
        for factor, name in enumerate(rule.names)
        if name not in rule.kept and split_problem(block, plain, factor) is not None
    ]
    return rule.keeping(wrong)


def flops_of(block: Block, rule: KernelRule) -> str:
    """
    Returns the number of floating-point operations of a reference as text: a sum of
    products of numbers and of factors that the rule allows to be split. The text is
    empty for a reference that is bound by memory.
    """
    shapes = [shape_of(arg.type) for arg in block.args]
    end = block.last_op
    assert end is not None
    results = [shape_of(value.type) for value in end.operands]
    plain, sizes = rule.rule(shapes, results), rule.sizes(shapes, results)
    divided: dict[Operation, list[str]] = {}
    for factor, name in enumerate(rule.names):
        if name not in rule.kept and sizes[name] > 1:
            parts = {factor: smallest_divisor(sizes[name])}
            found = reference_part(block, plain, parts)
            assert not isinstance(found, str), found
            for op in found.split:
                divided.setdefault(op, []).append(name)
    terms: dict[tuple[str, ...], int] = {}
    for op in block.ops:
        flops = rule_for(op).flops
        if flops:
            names = tuple(divided.get(op, ()))
            own = flops // prod(sizes[name] for name in names)
            terms[names] = terms.get(names, 0) + own
    return " + ".join("*".join([str(n), *names]) for names, n in terms.items())


def smallest_divisor(size: int) -> int:
    """
    Returns the smallest number of parts, at least two, into which `size` elements split
    evenly. If there is none up to `MOST_PARTS`, returns `size`.
    """
    last = min(isqrt(size), MOST_PARTS)
    return next((n for n in range(2, last + 1) if size % n == 0), size)


def _largest_divisor(size: int) -> int:
    """
    Returns the largest number of parts, at most `MOST_PARTS`, into which `size`
    elements split evenly.
    """
    if size <= MOST_PARTS:
        return size
    return next(n for n in range(MOST_PARTS, 0, -1) if size % n == 0)


def _content(op: Operation) -> tuple[object, ...]:
    return op.name, tuple(op.properties.items()), tuple(op.result_types)


def _plain(layout: Layout) -> str:
    return str(layout).replace(f"@{_MESH}, ", "").replace(f"@{_MESH}", "")


def parts_of(kernel: KernelDefOp, shapes: Sequence[Sequence[int]]) -> dict[int, int]:
    """
    Returns the number of parts of each split factor of a kernel if its operands have
    the given `shapes`. Raises DistIRError if these are not parts of the kernel's own
    operands.
    """
    named = parse_rule(kernel.rule.data)
    block = kernel.reference.block
    results = [shape_of(value.type) for value in kernel.result.values]
    whole = named.sizes([shape_of(arg.type) for arg in block.args], results)
    local = KernelRule(named.operands, (), named.kept).sizes(shapes, [])
    found: dict[int, int] = {}
    for factor, name in enumerate(named.names):
        if whole[name] % local[name] or (name in named.kept) > (
            whole[name] == local[name]
        ):
            raise DistIRError(
                f"kernel @{kernel.symbol}: a part with {name} = {local[name]} is none of "
                f"its reference, which has {name} = {whole[name]}"
            )
        if whole[name] != local[name]:
            found[factor] = whole[name] // local[name]
    return found
