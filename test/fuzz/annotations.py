"""
Random legal layouts of a sequential program, as annotations for `partition`.

Each op is split by a random assignment of its rule's factors to mesh axes, on a random
one of several meshes; operands stay partial where the rule lets them pass. Nothing is
chosen because it is cheap or likely: whatever the rules allow may come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from hypothesis import strategies as st
from support.random_programs import Draw, shape_of
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.device import MeshOp
from distir.dialects.dist import (
    LAYOUT,
    OPERAND_LAYOUTS,
    RESULT_LAYOUTS,
    Layout,
    LayoutAttr,
    Shard,
)
from distir.errors import ShardingError
from distir.program import (
    argument_attributes,
    entry_function,
    functions,
    set_argument_attributes,
)
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Inference, Rule, infer, layout_for, rule_for

AXES = [
    (("d", 2),),
    (("d", 4),),
    (("d", 2), ("t", 2)),
    (("d", 2), ("t", 3)),
    (("one", 1), ("d", 3), ("t", 2)),
    (("d", 2), ("t", 2), ("e", 2)),
]


def random_meshes(draw: Draw) -> list[Mesh]:
    """One mesh or two with the same axes, on any devices, which they may share."""
    axes = draw(st.sampled_from(AXES))
    size = prod(n for _, n in axes)
    devices = list(range(size))
    found = [Mesh("m", axes, tuple(_devices(draw, devices)))]
    if draw(st.integers(0, 2)) == 0:
        first = draw(st.sampled_from([0, size, size // 2]))
        found.append(
            Mesh("n", axes, tuple(_devices(draw, [d + first for d in devices])))
        )
    return found


def _devices(draw: Draw, devices: list[int]) -> list[int]:
    return draw(st.permutations(devices)) if draw(st.booleans()) else devices


def declare(module: ModuleOp, meshes: Sequence[Mesh]) -> None:
    """Declares the meshes at the top of a module."""
    first = module.body.block.first_op
    assert first is not None
    for mesh in meshes:
        op = MeshOp(mesh.name, "c", list(mesh.axes), mesh.devices)
        module.body.block.insert_op_before(op, first)


def any_layout(draw: Draw, shape: Sequence[int], mesh: Mesh) -> Layout:
    """A layout without partial axes; the axes of a dimension are in any order."""
    layout = Layout(mesh.name)
    for axis, _ in draw(st.permutations(mesh.axes)):
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim < 0:
            continue
        run = draw(st.sampled_from([None, None, None, 1, 2]))
        shards = (*layout.dim(dim), Shard(axis, run))
        split = layout.with_dim(dim, shards, len(shape))
        if fits(shape, split, mesh):
            layout = canonical(shape, split, mesh)
    return layout


def random_assignment(
    draw: Draw, rule: Rule, mesh: Mesh, taken: frozenset[str]
) -> dict[int, tuple[Shard, ...]]:
    """Which factors of an op are split over which axes; not over those that are taken."""
    left = [factor.size for factor in rule.factors]
    found: dict[int, tuple[Shard, ...]] = {}
    for axis, parts in draw(st.permutations(mesh.axes)):
        possible = [
            f
            for f, factor in enumerate(rule.factors)
            if factor.kind != "replicate"
            and f not in rule.decomposed
            and left[f] % parts == 0
            and left[f]
        ]
        if axis in taken or not possible or draw(st.integers(0, 3)) == 0:
            continue
        factor = draw(st.sampled_from(possible))
        each = left[factor] // parts
        runs = [run for run in range(1, each) if each % run == 0]
        run = draw(st.sampled_from([None, None, *runs]))
        found[factor] = (*found.get(factor, ()), Shard(axis, run))
        left[factor] = each
    return found


@dataclass
class Annotator:
    """Chooses layouts function by function, callees first."""

    draw: Draw
    meshes: Sequence[Mesh]
    arguments: dict[str, list[Layout]] = field(default_factory=dict)
    results: dict[str, list[Layout]] = field(default_factory=dict)
    _current: dict[SSAValue, Layout] = field(default_factory=dict)

    def module(self, module: ModuleOp) -> None:
        """Annotates all functions of a module, which call only those before them."""
        entry = entry_function(module)
        for function in functions(module).values():
            self._function(function, function is entry)

    def _mesh(self) -> Mesh:
        return self.draw(st.sampled_from(self.meshes))

    def _layout(self, type_: Attribute) -> Layout:
        shape = type_.get_shape() if isinstance(type_, TensorType) else ()
        return any_layout(self.draw, shape, self._mesh())

    def _function(self, function: FuncOp, is_entry: bool) -> None:
        attributes = argument_attributes(function)
        name = function.sym_name.data
        self.arguments[name] = []
        for arg, entry in zip(function.body.block.args, attributes, strict=True):
            self._current[arg] = self._layout(arg.type)
            self.arguments[name].append(self._current[arg])
            entry[LAYOUT] = LayoutAttr(self._current[arg])
        set_argument_attributes(function, attributes)
        for op in function.body.block.ops:
            if isinstance(op, ReturnOp):
                operands = [self._returned(v, is_entry) for v in op.operands]
                self.results[name], results = operands, []
            elif isinstance(op, CallOp):
                callee = op.callee.string_value()
                operands, results = self.arguments[callee], self.results[callee]
            else:
                operands, results = self._op(op)
            self._annotate(op, operands, results)

    def _returned(self, value: SSAValue, is_entry: bool) -> Layout:
        """Functions but the entry may return partial values as they are."""
        if not is_entry and self._current[value].partial and self.draw(st.booleans()):
            return self._current[value]
        return self._layout(value.type)

    def _annotate(
        self, op: Operation, operands: Sequence[Layout], results: Sequence[Layout]
    ) -> None:
        for name, layouts in ((OPERAND_LAYOUTS, operands), (RESULT_LAYOUTS, results)):
            op.attributes[name] = ArrayAttr([LayoutAttr(layout) for layout in layouts])
        for value, layout in zip(op.results, results, strict=True):
            self._current[value] = layout

    def _op(self, op: Operation) -> tuple[Sequence[Layout], Sequence[Layout]]:
        mesh, rule = self._mesh(), rule_for(op)
        passed = self._passed_partial(op, rule, mesh)
        taken = frozenset(axis for partial in passed.values() for axis, _ in partial)
        assignment = random_assignment(self.draw, rule, mesh, taken)
        for chosen, partial in ((assignment, passed), ({}, passed), ({}, {})):
            operands = [
                layout_for(dims, rule, chosen, mesh, partial.get(i, ()))
                for i, dims in enumerate(rule.operands)
            ]
            inference = _inferred(rule, operands, mesh)
            if inference is not None:
                return operands, inference.results
        raise AssertionError(f"{op} cannot even be replicated")

    def _passed_partial(
        self, op: Operation, rule: Rule, mesh: Mesh
    ) -> Mapping[int, tuple[tuple[str, str], ...]]:
        """Operands that stay partial over one axis, as the rule lets them pass."""
        possible: list[Mapping[int, tuple[tuple[str, str], ...]]] = []
        for linear in rule.linear:
            layouts = [self._current[op.operands[i]] for i in linear.operands]
            common = set.intersection(*(set(layout.partial) for layout in layouts))
            here = all(layout.mesh == mesh.name for layout in layouts)
            possible += [
                dict.fromkeys(linear.operands, (partial,))
                for partial in sorted(common)
                if here and partial[1] in linear.reductions
            ]
        if not possible or self.draw(st.integers(0, 2)) == 0:
            return {}
        return self.draw(st.sampled_from(possible))


def _inferred(rule: Rule, operands: Sequence[Layout], mesh: Mesh) -> Inference | None:
    """None for what the rule refuses: reductions of two kinds at once."""
    try:
        return infer(rule, operands, mesh)
    except ShardingError:
        return None


def sizes(module: ModuleOp) -> list[tuple[int, ...]]:
    """The shapes of the entry function's arguments."""
    return [shape_of(arg) for arg in entry_function(module).body.block.args]
