"""
Layouts for a batch size between two other batch sizes.

If the size of every tensor and the work of every op grow linearly with the batch, so
does the cost of any choice of layouts. A choice that is best for a small and for a
large batch is then best for all batches between them, and needs no search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects.dist import layout_of, with_layout
from distir.dialects.tensors import shape_of
from distir.program import functions
from distir.sharding.decompose import decompose, discard
from distir.sharding.rule import Rule, rule_for
from distir.sharding.signatures import Signatures


class _Found(list[tuple[Hashable, Sequence[Attribute]]]):
    """
    The contents of a program in order, as pairs. The first element of a pair must be
    equal in all compared programs; the second holds the attributes and types that may
    depend on the batch.
    """

    def __init__(self, module: ModuleOp):
        super().__init__()
        self._numbers: dict[SSAValue, int] = {}
        for op in module.body.block.ops:
            if not isinstance(op, FuncOp):
                self.append((str(op), ()))
                continue
            self._add(op)
            for block in op.body.blocks:
                self._define(block.args)
                for inner in block.ops:
                    self._add(inner)

    def _add(self, op: Operation) -> None:
        named = sorted({**op.properties, **op.attributes}.items())
        if isinstance(op, FuncOp):  # its arguments and results say that
            named = [(n, a) for n, a in named if n != "function_type"]
        operands = tuple([self._numbers[v] for v in op.operands])
        names = tuple([n for n, _ in named])
        self.append(((op.name, operands, names), [a for _, a in named]))
        self._define(op.results)

    def _define(self, values: Sequence[SSAValue]) -> None:
        self.append((len(values), [v.type for v in values]))
        for value in values:
            self._numbers[value] = len(self._numbers)


@dataclass(frozen=True)
class _Measure:
    """
    The contents of an op's sharding rule for a comparison: the parts that depend on no
    size (`kind`), the sizes, and the floating-point operations.
    """

    kind: Hashable
    sizes: tuple[int, ...]
    flops: int

    @staticmethod
    def of(rule: Rule, op: Operation) -> _Measure:
        """
        Returns the data of `op`, with the sharding rule `rule`, that are compared
        between batch sizes.
        """
        shapes = [shape_of(v.type) for v in (*op.operands, *op.results)]
        factors = tuple((f.kind, f.reduction) for f in rule.factors)
        partial = tuple(sorted(rule.partial_results.items()))
        kind = factors, rule.operands, rule.results, rule.linear, rule.decomposed
        sizes = *(f.size for f in rule.factors), *(n for s in shapes for n in s)
        return _Measure((op.name, kind, partial), sizes, rule.flops)


def _measures(module: ModuleOp) -> Iterator[_Measure]:
    """
    Yields the data that are compared between batch sizes, for a program's ops and for
    the ops in their decompositions. Equal ops are covered once.
    """
    signatures, seen = Signatures(), set[int]()
    for function in functions(module).values():
        for op in function.body.block.ops:
            if isinstance(op, CallOp) or not op.results:
                continue
            signature = signatures.of(op)
            if signature in seen:
                continue
            seen.add(signature)
            yield _Measure.of(signatures.rule(op), op)
            parts = decompose(op) or []
            yield from [_Measure.of(rule_for(part), part) for part in parts]
            discard(parts)


class Sizes:
    """The contents of a sequential program for one batch size, with all sizes in it."""

    def __init__(self, module: ModuleOp, batch: int):
        self.batch = batch
        self.found = _Found(module)
        self.measures = [*_measures(module)]


class Between:
    """
    A comparison of a program with the same program for a smaller and a larger batch.
    `holds` says whether the three programs differ only in sizes, and whether all sizes
    and the work of all ops are linear in the batch.
    """

    def __init__(self, low: Sizes, own: Sizes, high: Sizes):
        self._middle: dict[tuple[Attribute, Attribute], Attribute] = {}
        programs = low, own, high
        self.holds = self._are_alike(programs) and self._are_linear(programs)

    def _are_alike(self, programs: Sequence[Sizes]) -> bool:
        found = [program.found for program in programs]
        if len({len(each) for each in found}) > 1:
            return False
        for (kind, low), (own, middle), (other, high) in zip(*found, strict=True):
            if not kind == own == other:
                return False
            for key, value in zip(zip(low, high, strict=True), middle, strict=True):
                same = key[0] if key[0] == key[1] else value
                if self._middle.setdefault(key, same) != value:
                    return False
        return True

    def _are_linear(self, programs: Sequence[Sizes]) -> bool:
        first, own, last = [program.batch for program in programs]
        found = [program.measures for program in programs]
        if len({len(each) for each in found}) > 1:
            return False
        tensors = [
            tuple(map(shape_of, (low, middle, high)))
            for (low, high), middle in self._middle.items()
        ]
        linear = [
            (low.flops, mid.flops, high.flops)
            for low, mid, high in zip(*found, strict=True)
        ]
        linear += [(prod(low), prod(mid), prod(high)) for low, mid, high in tensors]
        if any(len({len(shape) for shape in shapes}) > 1 for shapes in tensors):
            return False
        sizes = [s for shapes in tensors for s in zip(*shapes, strict=True)]
        for low, mid, high in zip(*found, strict=True):
            if not low.kind == mid.kind == high.kind:
                return False
            sizes += zip(low.sizes, mid.sizes, high.sizes, strict=True)
        return all(
            (high - low) * (own - first) == (mid - low) * (last - first)
            for low, mid, high in linear
        ) and all(
            low == mid == high
            or (low * own == mid * first and low * last == high * first)
            for low, mid, high in sizes
        )

    def program(self, low: ModuleOp, high: ModuleOp) -> ModuleOp | None:
        """
        Returns the distributed program for the middle batch, derived from the
        distributed programs for the smaller batch (`low`) and the larger batch
        (`high`). Returns None if `low` and `high` have different layouts.
        """
        found, other = _Found(low), _Found(high)
        if len(found) != len(other):
            return None
        known: dict[tuple[int, int], Attribute | None] = {}
        attributes: list[Attribute] = []
        for (kind, mine), (its, theirs) in zip(found, other, strict=True):
            if kind != its:
                return None
            for pair in zip(mine, theirs, strict=True):
                ids = id(pair[0]), id(pair[1])
                if ids not in known:
                    known[ids] = self._between(*pair)
                middle = known[ids]
                if middle is None:
                    return None
                attributes.append(middle)
        return _rebuilt(low, iter(attributes))

    def _between(self, low: Attribute, high: Attribute) -> Attribute | None:
        if low == high:
            return low
        layout = layout_of(low)
        if layout is None or layout != layout_of(high):
            return self._middle.get((low, high))
        middle = self._middle.get((_bare(low), _bare(high)))
        if not isinstance(middle, TensorType):
            return None
        return with_layout(middle, layout)


@lru_cache(maxsize=1 << 12)
def _bare(type_: Attribute) -> Attribute:
    """Returns a tensor type without its layout."""
    assert isinstance(type_, TensorType)
    return TensorType[Any](type_.element_type, type_.get_shape())


def _rebuilt(module: ModuleOp, attributes: Iterator[Attribute]) -> ModuleOp:
    """
    Returns a copy of a program with new attributes and types. `attributes` lists these
    in the order in which the program is read (`_Found`).
    """
    values: dict[SSAValue, SSAValue] = {}

    def define(old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        for before, after in zip(old, new, strict=True):
            after.name_hint = before.name_hint
            values[before] = after

    def made(op: Operation, regions: Sequence[Region] = ()) -> Operation:
        names = sorted({**op.properties, **op.attributes})
        if isinstance(op, FuncOp):
            names.remove("function_type")
        given = {name: next(attributes) for name in names}
        own = {n: a for n, a in op.properties.items() if n not in given}
        new = type(op).create(
            operands=[values[v] for v in op.operands],
            result_types=[next(attributes) for _ in op.results],
            properties={**own, **{n: given[n] for n in op.properties if n in given}},
            attributes={n: given[n] for n in op.attributes},
            regions=regions,
        )
        define(op.results, new.results)
        return new

    ops: list[Operation] = []
    for op in module.body.block.ops:
        if not isinstance(op, FuncOp):
            ops.append(op.clone())
            continue
        region = Region()
        function = made(op, [region])
        assert isinstance(function, FuncOp)
        for old in op.body.blocks:
            block = Block(arg_types=[next(attributes) for _ in old.args])
            region.add_block(block)
            define(old.args, block.args)
            block.add_ops([made(inner) for inner in old.ops])
        function.update_function_type()
        ops.append(function)
    return ModuleOp(ops, module.attributes)
