"""
Choosing what one mesh axis does to every value of a program.

For each op the sharding rule offers candidates: split one factor over the axis, let
partial values pass through, or work on whole values. `AxisChooser` finds the cheapest
combination for a function by dynamic programming in program order. A state is what the
axis does to the values that are still live; a called function is solved once per
combination of argument placements, so a repeated layer costs what one layer costs.

The price is deliberately independent of the cluster: floating-point operations per
device, plus a low price per byte communicated, plus a much lower one per byte touched.
Whoever asks for a 4-way split wants the work split 4 ways where that is possible, and
then as little communication as possible; the searches weigh the two with the cluster's
real costs. Among equals, values stay whole between blocks (Megatron's scheme) rather
than split: gathering is priced slightly above its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import inf, prod
from operator import itemgetter
from typing import Literal, NamedTuple

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.onnx_values import bytes_per_element
from distir.errors import DistIRError
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import Mesh
from distir.sharding.rule import (
    Rule,
    dim_shards,
    factor_shards,
    rank_of,
    rule_for,
    shape_of,
)

PRICE_PER_BYTE_SENT = 4.0
PRICE_PER_BYTE_TOUCHED = 0.05
GATHER_PENALTY = 1.25
MAX_STATES = 256
MAX_ALTERNATIVES = 16
MAX_COMPARED = 8


class Placement(NamedTuple):
    """
    What one mesh axis does to a value: nothing (`whole`), `split` a dimension with a
    run length as in `Shard`, leave it `partial`, or, for a parameter that nothing has
    used yet, still `free`.
    """

    kind: str
    dim: int = 0
    run: int | None = None
    monoid: str = ""


WHOLE = Placement("whole")
FREE = Placement("free")


def placement_in(layout: Layout, axis: str) -> Placement:
    """What `axis` does to a value with that layout."""
    for dim, shards in enumerate(layout.dims):
        for shard in shards:
            if shard.axis == axis:
                return Placement("split", dim, shard.run)
    for name, monoid in layout.partial:
        if name == axis:
            return Placement("partial", monoid=monoid)
    return WHOLE


def add_placement(layout: Layout, axis: str, placement: Placement, rank: int) -> Layout:
    """The layout with `axis` doing that, inside the axes already there."""
    if placement.kind == "split":
        shards = (*layout.dim(placement.dim), Shard(axis, placement.run))
        return layout.with_dim(placement.dim, shards, rank)
    if placement.kind == "partial":
        return Layout(
            layout.mesh, layout.dims, (*layout.partial, (axis, placement.monoid))
        )
    return layout


@dataclass
class OpLayouts:
    """The layouts chosen so far (for the axes before) for an op's operands and results."""

    operands: list[Layout]
    results: list[Layout]
    assignment: dict[int, tuple[Shard, ...]] = field(
        default_factory=dict[int, tuple[Shard, ...]]
    )


@dataclass(frozen=True)
class OpChoice:
    """What the axis does to one op: placements, and the factor that it splits."""

    op: Operation
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int | None = None
    run: int | None = None
    decompose: bool = False
    callee: FunctionChoice | None = None


Source = Literal["activation", "constant", "parameter"]
"""
What a value is computed from: inputs among other things, constants only, or parameters
and constants only. Every device can compute the latter two for itself.
"""

ArgumentKey = tuple[Placement, Source]
"""What an argument comes as, and what it is computed from."""


@dataclass(eq=False)
class FunctionChoice:
    """The cheapest choice for a function whose arguments and results are so placed."""

    name: str
    cost: float
    arguments: tuple[Placement, ...]
    results: tuple[Placement, ...]
    ops: list[OpChoice]


class _Node(NamedTuple):
    """A state of the dynamic program: its cost and how it was reached."""

    cost: float
    parent: _Node | None
    choice: OpChoice | None

    def path(self) -> list[OpChoice]:
        """The choices that led here, in program order."""
        choices: list[OpChoice] = []
        node = self
        while node.parent is not None:
            assert node.choice is not None
            choices.append(node.choice)
            node = node.parent
        choices.reverse()
        return choices


class _Candidate(NamedTuple):
    factor: int | None
    run: int | None
    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    work: float
    decompose: bool


Available = frozenset[Placement]
"""The ways in which a value is there already."""

State = tuple[Available, ...]
"""What the axis does to each live value, by slot."""

NOTHING: Available = frozenset()

REQUESTED = -1
"""Stands for a request among the operands that support a split."""


class _OpInfo:
    """What the dynamic program needs to know of one op, computed once."""

    def __init__(
        self, op: Operation, rule: Rule, base: OpLayouts | None, mesh: Mesh, axis: str
    ):
        whole = Layout(mesh.name)
        self.op = op
        self.rule = rule
        self.mesh = mesh
        self.axis = axis
        self.parts = mesh.size(axis)
        self.base = base or OpLayouts(
            [whole] * len(op.operands), [whole] * len(op.results)
        )
        self.operand_bytes = [
            local_bytes(v, layout, mesh)
            for v, layout in zip(op.operands, self.base.operands, strict=True)
        ]
        self.result_bytes = [
            local_bytes(v, layout, mesh)
            for v, layout in zip(op.results, self.base.results, strict=True)
        ]
        split = prod(
            mesh.size(s.axis)
            for shards in self.base.assignment.values()
            for s in shards
        )
        self.flops = rule.flops / split
        self._candidates: dict[tuple[int | None, int | None], _Candidate | None] = {}
        self._factors: dict[
            tuple[bool, int, Placement], tuple[int, int | None] | None
        ] = {}

    def local_size(self, factor: int) -> int:
        """The size of a factor after the axes before."""
        shards = self.base.assignment.get(factor, ())
        return self.rule.factors[factor].size // prod(
            self.mesh.size(s.axis) for s in shards
        )

    def candidate(self, factor: int | None, run: int | None) -> _Candidate | None:
        """Splitting that factor (None: nothing), or None if the rule forbids it."""
        key = (factor, run)
        if key not in self._candidates:
            self._candidates[key] = self._candidate(factor, run)
        return self._candidates[key]

    def _candidate(self, factor: int | None, run: int | None) -> _Candidate | None:
        rule, decompose = self.rule, False
        if factor is None:
            operands = (WHOLE,) * len(self.op.operands)
            results = (WHOLE,) * len(self.op.results)
        else:
            kind = rule.factors[factor].kind
            size = self.local_size(factor)
            if kind == "replicate" or size % ((run or 1) * self.parts):
                return None
            if run is not None and run * self.parts == size:
                run = None
            shard = Shard(self.axis, run)
            before = self.base.assignment.get(factor, ())
            assignment = {**self.base.assignment, factor: (*before, shard)}
            operands = self._placements(rule.operands, factor, assignment)
            results = self._placements(rule.results, factor, assignment)
            monoid = rule.factors[factor].monoid
            reduced = rule.partial_results.get(factor, frozenset())
            results = tuple(
                Placement("partial", monoid=monoid) if i in reduced else p
                for i, p in enumerate(results)
            )
            if kind == "reduction":
                # After decomposition the reduced value is whole: the op that adds the
                # addend needs it so.
                decompose = bool(rule.addends)
                after = WHOLE if decompose else Placement("partial", monoid=monoid)
                results = tuple(after for _ in results)
        work = self.flops / (1 if factor is None else self.parts)
        touched = sum(
            size / (self.parts if p.kind == "split" else 1)
            for size, p in zip(
                (*self.operand_bytes, *self.result_bytes),
                (*operands, *results),
                strict=True,
            )
        )
        work += PRICE_PER_BYTE_TOUCHED * touched
        if decompose:
            work += sum(_reduce_price(size, self.parts) for size in self.result_bytes)
        return _Candidate(factor, run, operands, results, work, decompose)

    def _placements(
        self,
        values: Sequence[Sequence[tuple[int, ...]]],
        factor: int,
        assignment: Mapping[int, tuple[Shard, ...]],
    ) -> tuple[Placement, ...]:
        out: list[Placement] = []
        for dims in values:
            placement = WHOLE
            for d, dim in enumerate(dims):
                if factor in dim:
                    for shard in dim_shards(dim, self.rule, assignment, self.mesh):
                        if shard.axis == self.axis:
                            placement = Placement("split", d, shard.run)
            out.append(placement)
        return tuple(out)

    def factor_of(
        self, is_result: bool, index: int, placement: Placement
    ) -> tuple[int, int | None] | None:
        """The factor (and run on it) that a split of an operand or result means."""
        key = (is_result, index, placement)
        if key not in self._factors:
            dims = (self.rule.results if is_result else self.rule.operands)[index]
            base = (self.base.results if is_result else self.base.operands)[index]
            found: tuple[int, int | None] | None = None
            if placement.dim < len(dims):
                shards = (
                    *base.dim(placement.dim),
                    Shard(self.axis, placement.run),
                )
                split = factor_shards(shards, dims[placement.dim], self.rule, self.mesh)
                for factor, own in (split or {}).items():
                    for shard in own:
                        if shard.axis == self.axis:
                            found = (factor, shard.run)
            self._factors[key] = found
        return self._factors[key]

    def fitting(self, index: int, placement: Placement) -> Placement | None:
        """
        That split of an operand inside the axes before, which may split the operand
        otherwise than where the placement comes from; None if its sizes forbid it.
        """
        type_, base = self.op.operands[index].type, self.base.operands[index]
        layout = add_placement(base, self.axis, placement, rank_of(type_))
        if not fits(shape_of(type_), layout, self.mesh):
            return None
        return placement_in(canonical(shape_of(type_), layout, self.mesh), self.axis)


def local_bytes(value: SSAValue, layout: Layout, mesh: Mesh) -> float:
    """Bytes of a value on one device under a layout."""
    type_ = value.type
    if not isinstance(type_, TensorType):
        return 0.0
    elements = prod(shape_of(type_)) if all(n >= 0 for n in shape_of(type_)) else 0
    parts = prod(mesh.size(axis) for axis in layout.split_axes)
    return elements * bytes_per_element(type_.element_type) / parts


def _reduce_price(size: float, parts: int) -> float:
    return PRICE_PER_BYTE_SENT * 2 * (parts - 1) / parts * size


def _gather_price(size: float, parts: int) -> float:
    return PRICE_PER_BYTE_SENT * GATHER_PENALTY * (parts - 1) / parts * size


class AxisChooser:
    """
    Chooses for one axis of a mesh.

    - `layouts`: what the axes before it do to each op.
    - `updates`: results of the entry function that replace an argument in the next
      step, by index; they are placed like it.
    - `split_parameters`: whether parameters (and what derives from parameters and
      constants only) may start a split. For a data axis they may not: only a split
      input, label or annotated parameter does.
    """

    def __init__(
        self,
        functions: Mapping[str, FuncOp],
        entry: str,
        mesh: Mesh,
        axis: str,
        layouts: Mapping[Operation, OpLayouts],
        *,
        split_parameters: bool,
        updates: Mapping[int, int],
    ):
        self.functions = functions
        self.entry = entry
        self.updates = updates
        self.mesh = mesh
        self.axis = axis
        self.parts = mesh.size(axis)
        self.layouts = layouts
        self.split_parameters = split_parameters
        self._infos: dict[Operation, _OpInfo] = {}
        self._hints: dict[str, dict[SSAValue, set[Placement]]] = {}
        self._solved: dict[
            tuple[str, tuple[ArgumentKey, ...]], list[FunctionChoice]
        ] = {}

    def info(self, op: Operation) -> _OpInfo:
        """The op's rule and candidates on this axis."""
        found = self._infos.get(op)
        if found is None:
            rule = Rule.replicated(op) if isinstance(op, CallOp) else rule_for(op)
            found = _OpInfo(op, rule, self.layouts.get(op), self.mesh, self.axis)
            self._infos[op] = found
        return found

    def solve(
        self, name: str, arguments: Sequence[ArgumentKey]
    ) -> list[FunctionChoice]:
        """
        The choices for a function whose arguments come like that: the cheapest for
        each way its results can leave it, cheapest first, `MAX_ALTERNATIVES` at most.
        """
        key = (name, tuple(arguments))
        if key not in self._solved:
            solver = _FunctionSolver(self, self.functions[name])
            self._solved[key] = solver.solve(arguments)
        return self._solved[key]

    def hints(self, name: str) -> dict[SSAValue, set[Placement]]:
        """
        Splits with run lengths that consumers could use without traffic, per value:
        each op's contiguous splits carried backwards along the rules. This is how the
        columns of a fused QKV learn that they must be split by heads.
        """
        if name in self._hints:
            return self._hints[name]
        hints: dict[SSAValue, set[Placement]] = {}
        self._hints[name] = hints
        for op in reversed(list(self.functions[name].body.block.ops)):
            if isinstance(op, CallOp):
                callee = self.functions[op.callee.string_value()]
                inner = self.hints(op.callee.string_value())
                for value, arg in zip(op.operands, callee.body.block.args, strict=True):
                    hints.setdefault(value, set()).update(inner.get(arg, ()))
                continue
            if isinstance(op, ReturnOp):
                continue
            info = self.info(op)
            factors: set[tuple[int, int | None]] = {
                (f, None)
                for f, factor in enumerate(info.rule.factors)
                if factor.kind != "replicate"
            }
            factors |= set(self.hinted_factors(info, hints))
            for factor, run in factors:
                candidate = info.candidate(factor, run)
                if candidate is None:
                    continue
                for value, placement in zip(
                    op.operands, candidate.operands, strict=True
                ):
                    if placement.kind == "split" and placement.run is not None:
                        hints.setdefault(value, set()).add(placement)
        return hints

    @cached_property
    def wishes(self) -> Mapping[SSAValue, set[Placement]]:
        """
        Splits that `dist.constrain` asks of the values that lead up to it, through
        elementwise and other ops that are no contractions, and across calls. An op
        whose result is wished for in parts may cut its operands for it.
        """
        wishes: dict[SSAValue, set[Placement]] = {}
        self._collect_wishes(self.entry, (), wishes)
        return wishes

    def _collect_wishes(
        self,
        name: str,
        results: Sequence[set[Placement]],
        wishes: dict[SSAValue, set[Placement]],
    ) -> list[set[Placement]]:
        """Adds the wishes for a function's values; gives those for its arguments."""
        block = self.functions[name].body.block
        for op in reversed(list(block.ops)):
            if isinstance(op, ReturnOp):
                for value, wished in zip(op.operands, results, strict=False):
                    wishes.setdefault(value, set()).update(wished)
            elif isinstance(op, CallOp):
                inner = self._collect_wishes(
                    op.callee.string_value(),
                    [wishes.get(r, set()) for r in op.results],
                    wishes,
                )
                for value, wished in zip(op.operands, inner, strict=True):
                    wishes.setdefault(value, set()).update(wished)
            elif isinstance(op, ConstrainOp):
                target = placement_in(op.layout.data, self.axis)
                if op.fixes(self.axis) and target.kind == "split":
                    wishes.setdefault(op.source, set()).add(target)
            elif any(r in wishes for r in op.results):
                info = self.info(op)
                if info.rule.flops:
                    continue
                for key in self.hinted_factors(info, wishes):
                    candidate = info.candidate(*key)
                    if candidate is None:
                        continue
                    for value, p in zip(op.operands, candidate.operands, strict=True):
                        if p.kind == "split":
                            wishes.setdefault(value, set()).add(p)
        return [wishes.get(arg, set()) for arg in block.args]

    def hinted_factors(
        self, info: _OpInfo, hints: Mapping[SSAValue, set[Placement]]
    ) -> Iterable[tuple[int, int | None]]:
        """Factors with run lengths that the users of an op's results hint at."""
        for index, result in enumerate(info.op.results):
            for placement in hints.get(result, ()):
                found = info.factor_of(True, index, placement)
                if found is not None:
                    yield found


class _FunctionSolver:
    """The dynamic program over one function's ops, in program order."""

    def __init__(self, chooser: AxisChooser, function: FuncOp):
        self.chooser = chooser
        self.function = function
        self.ops = list(function.body.block.ops)
        self.derived: dict[SSAValue, Source] = {}
        """Values that follow from parameters and constants alone."""
        self.requested: set[SSAValue] = set()
        """Those among them that come split already, not by this solver's choice."""
        self.last_use: dict[SSAValue, int] = {}
        for position, op in enumerate(self.ops):
            for value in op.operands:
                self.last_use[value] = position
        self.unused: dict[SSAValue, Available] = {}
        """Arguments before their first use: the same in every state, so in none."""
        self.slots: dict[SSAValue, int] = {}
        """Where the live values are in a state."""
        self.sizes: dict[int, float] = {}
        """Bytes of the value in a slot on one device, if this axis does not split it."""
        self.free: list[int] = []
        """Slots of values that are dead."""
        self.width = 0
        self.is_entry = function.sym_name.data == chooser.entry

    def solve(self, arguments: Sequence[ArgumentKey]) -> list[FunctionChoice]:
        """Runs the dynamic program; see `AxisChooser.solve`."""
        args = self.function.body.block.args
        for arg, (placement, source) in zip(args, arguments, strict=True):
            self.unused[arg] = frozenset([placement])
            if source != "activation":
                self.derived[arg] = source
                if placement.kind == "split":
                    self.requested.add(arg)
        states: dict[State, _Node] = {(): _Node(0.0, None, None)}
        for position, op in enumerate(self.ops):
            states = self._with_arguments(op, states)
            if isinstance(op, ReturnOp):
                return self._finish(op, states, arguments)
            self._derive(op)
            states = self._step(position, op, states)
        raise DistIRError(
            f"function @{self.function.sym_name.data} does not end in func.return"
        )

    def _take_slot(self, value: SSAValue) -> int:
        if self.free:
            self.slots[value] = self.free.pop()
        else:
            self.slots[value] = self.width
            self.width += 1
        return self.slots[value]

    def _with_arguments(
        self, op: Operation, states: dict[State, _Node]
    ) -> dict[State, _Node]:
        """The states with the arguments that the op is the first to use."""
        new = [v for v in dict.fromkeys(op.operands) if v in self.unused]
        if not new:
            return states
        changes = {self._take_slot(value): self.unused.pop(value) for value in new}
        sizes = self.chooser.info(op).operand_bytes
        for value in new:
            index = list(op.operands).index(value)
            self.sizes[self.slots[value]] = sizes[index]
        return {self._changed(state, changes): n for state, n in states.items()}

    def _changed(self, state: State, changes: Mapping[int, Available]) -> State:
        after = [*state, *[NOTHING] * (self.width - len(state))]
        for slot, available in changes.items():
            after[slot] = available
        return tuple(after)

    def _derive(self, op: Operation) -> None:
        """Records what an op's results are computed from."""
        sources = {self.derived.get(v, "activation") for v in op.operands}
        if "activation" in sources or isinstance(op, CallOp):
            return
        source: Source = "parameter" if "parameter" in sources else "constant"
        for result in op.results:
            self.derived[result] = source
            if any(v in self.requested for v in op.operands):
                self.requested.add(result)

    def _step(
        self, position: int, op: Operation, states: dict[State, _Node]
    ) -> dict[State, _Node]:
        slots = [self.slots[v] for v in op.operands]
        # Many states agree on this op's operands; their candidates are computed once.
        known: dict[tuple[Available, ...], list[tuple[OpChoice, float]]] = {}
        reached: list[tuple[float, State, _Node, OpChoice]] = []
        for state, node in states.items():
            available = tuple(state[slot] for slot in slots)
            options = known.get(available)
            if options is None:
                options = known[available] = list(self._options(op, available))
            for choice, price in options:
                reached.append((node.cost + price, state, node, choice))
        # Cheapest first: the first way to reach a state is the best one, and states are
        # built only until there are enough.
        reached.sort(key=itemgetter(0))
        dead = [v for v in dict.fromkeys(op.operands) if self.last_use[v] == position]
        freed = {self.slots.pop(v): NOTHING for v in dead}
        self.free += freed
        results = [
            (i, self._take_slot(r))
            for i, r in enumerate(op.results)
            if r in self.last_use
        ]
        for i, slot in results:
            self.sizes[slot] = self.chooser.info(op).result_bytes[i]
        new_states: dict[State, _Node] = {}
        for cost, state, node, choice in reached:
            changes: dict[int, Available] = {}
            for slot, placement in zip(slots, choice.operands, strict=True):
                before = changes.get(slot, state[slot])
                fresh = frozenset([placement])
                changes[slot] = fresh if FREE in before else before | fresh
            changes |= freed
            for i, slot in results:
                changes[slot] = frozenset([choice.results[i]])
            new_state = self._changed(state, changes)
            if new_state in new_states or self._dominated(new_state, cost, new_states):
                continue
            new_states[new_state] = _Node(cost, node, choice)
            if len(new_states) == MAX_STATES:
                break
        return new_states

    def _dominated(
        self, state: State, cost: float, kept: Mapping[State, _Node]
    ) -> bool:
        """
        Whether a kept state reaches this one by communication, for no more: what this
        state has already moved, that one can move when it is needed.
        """
        for other, node in islice(kept.items(), MAX_COMPARED):
            left = cost - node.cost
            for slot, (have, want) in enumerate(zip(other, state, strict=True)):
                if have != want:
                    left -= self._conversion(slot, have, want)
                    if left < 0:
                        break
            else:
                return True
        return False

    def _conversion(self, slot: int, have: Available, want: Available) -> float:
        """The price of having a live value in all the ways of another state."""
        if FREE in have:
            return 0.0
        size, parts = self.sizes[slot], self.chooser.parts
        price = 0.0
        for target in want:
            if target in have:
                continue
            prices = [inf]
            for source in have:
                match source.kind, target.kind:
                    case "split", "whole":
                        prices.append(_gather_price(size, parts))
                    case "split", "split":
                        prices.append(_gather_price(size, parts) / parts)
                    case "partial", "whole":
                        prices.append(_reduce_price(size, parts))
                    case _:
                        pass
            price += min(prices)
        return price

    def _options(
        self, op: Operation, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        if isinstance(op, CallOp):
            yield from self._call(op, available)
        elif isinstance(op, ConstrainOp):
            yield from self._constrained(op, available[0])
        else:
            yield from self._compute(op, available)

    def _compute(
        self, op: Operation, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        info = self.chooser.info(op)
        for key, support in self._supported(info, available).items():
            candidate = info.candidate(*key)
            if candidate is None or self._is_foreign(info, key[0]):
                continue
            price = candidate.work
            for i, target in enumerate(candidate.operands):
                price += self._move(
                    op.operands[i],
                    available[i],
                    target,
                    info.operand_bytes[i],
                    may_slice=bool(support - {i}),
                )
            if price < inf:
                yield (
                    OpChoice(
                        op,
                        candidate.operands,
                        candidate.results,
                        candidate.factor,
                        candidate.run,
                        candidate.decompose,
                    ),
                    price,
                )
        yield from self._partial(info, available)

    def _is_foreign(self, info: _OpInfo, factor: int | None) -> bool:
        """
        Whether a split is not what an axis for parameters is there for: a contraction
        with a parameter splits along a dimension of the parameter; one of activations
        alone (attention scores) is not turned into partial sums.
        """
        if factor is None or not self.chooser.split_parameters or not info.rule.flops:
            return False
        parameters = [
            i
            for i, v in enumerate(info.op.operands)
            if self.derived.get(v) == "parameter"
        ]
        if parameters:
            return not any(
                factor in dim for i in parameters for dim in info.rule.operands[i]
            )
        return info.rule.factors[factor].kind == "reduction" and not any(
            v in self.derived for v in info.op.operands
        )

    def _partial(
        self, info: _OpInfo, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        """Letting partial values pass through, where the rule is linear in them."""
        whole = info.candidate(None, None)
        assert whole is not None
        for linear in info.rule.linear:
            monoids = [
                {p.monoid for p in available[i] if p.kind == "partial"}
                for i in linear.operands
            ]
            common = set[str].intersection(*monoids) if monoids else set[str]()
            for monoid in sorted(common & linear.monoids):
                partial = Placement("partial", monoid=monoid)
                operands = tuple(
                    partial if i in linear.operands else WHOLE
                    for i in range(len(available))
                )
                price = whole.work + sum(
                    self._move(
                        info.op.operands[i], available[i], p, info.operand_bytes[i]
                    )
                    for i, p in enumerate(operands)
                )
                if price < inf:
                    results = (partial,) * len(info.op.results)
                    yield OpChoice(info.op, operands, results), price

    def _supported(
        self, info: _OpInfo, available: tuple[Available, ...]
    ) -> dict[tuple[int | None, int | None], set[int]]:
        """
        The factors (with runs) worth trying and the operands that suggest each: those
        already split that way, and, where parameters may start a split, those derived
        from parameters. A suggestion by an activation or by a requested split lets
        whole operands be sliced; a split chosen for a parameter here does not.
        """
        found: dict[tuple[int | None, int | None], set[int]] = {(None, None): set()}
        starts: list[int] = []
        activations = [
            any(p.kind == "split" for p in placements)
            and info.op.operands[i] not in self.derived
            for i, placements in enumerate(available)
        ]
        for i, placements in enumerate(available):
            if (
                any(activations)
                and not activations[i]
                and not self.chooser.split_parameters
            ):
                # A parameter stored split over a data axis is gathered for its use.
                continue
            for placement in placements:
                if placement.kind == "split":
                    key = info.factor_of(False, i, placement)
                    if key is not None:
                        support = found.setdefault(key, set())
                        value = info.op.operands[i]
                        if value not in self.derived or value in self.requested:
                            support.add(i)
                elif placement.kind == "free" or (
                    placement.kind == "whole"
                    and self.chooser.split_parameters
                    and self.derived.get(info.op.operands[i]) == "parameter"
                ):
                    starts.append(i)
        for key in self.chooser.hinted_factors(info, self.chooser.wishes):
            found.setdefault(key, set()).add(REQUESTED)
        if not starts:
            return found
        # A split starts where a parameter meets a contraction, or before that where an
        # undecided parameter is prepared for one (transposed, cast). Added to an
        # activation (a bias, a table of positions) a parameter only follows: else it
        # would split the sequence.
        preparation = len(info.op.operands) == 1 and FREE in available[0]
        if not preparation and not info.rule.flops:
            return found
        hints = self.chooser.hints(self.function.sym_name.data)
        wanted: set[tuple[int, int | None]] = set(
            self.chooser.hinted_factors(info, hints)
        )
        for i in starts:
            for dim in info.rule.operands[i]:
                for factor in dim:
                    found.setdefault((factor, None), set())
                    for hinted, run in wanted:
                        if hinted == factor:
                            found.setdefault((factor, run), set())
        return found

    def _move(
        self,
        value: SSAValue,
        available: Available,
        target: Placement,
        size: float,
        *,
        may_slice: bool = False,
    ) -> float:
        """The price of having an operand placed as an op needs it; inf if never."""
        if target in available:
            return 0.0
        if FREE in available:
            return inf if target.kind == "partial" else 0.0
        parts = self.chooser.parts
        prices = [inf]
        for source in available:
            match source.kind, target.kind:
                case "whole", "split":
                    if may_slice or value in self.derived:
                        prices.append(0.0)
                case "split", "whole":
                    prices.append(_gather_price(size, parts))
                case "split", "split":
                    prices.append(_gather_price(size, parts) / parts)
                case "partial", "whole":
                    prices.append(_reduce_price(size, parts))
                case "partial", "split":
                    if may_slice:
                        prices.append(_reduce_price(size, parts) / 2)
                case _:
                    pass
        return min(prices)

    def _settled(
        self, user: _OpInfo, index: int, available: Available
    ) -> tuple[Placement, float]:
        """
        How an operand crosses a function boundary at a call or return: as it is, but
        never partial.
        """
        if WHOLE in available:
            return WHOLE, 0.0
        if FREE in available:
            return FREE, 0.0
        size, parts = user.operand_bytes[index], self.chooser.parts
        splits = (p for p in available if p.kind == "split")
        for placement in sorted(splits, key=str):
            fitting = user.fitting(index, placement)
            if fitting is not None:
                return fitting, 0.0
        prices = {"split": _gather_price, "partial": _reduce_price}
        return WHOLE, min(prices[p.kind](size, parts) for p in available)

    def _call(
        self, op: CallOp, available: tuple[Available, ...]
    ) -> Iterable[tuple[OpChoice, float]]:
        info = self.chooser.info(op)
        price = 0.0
        keys: list[ArgumentKey] = []
        for i, placements in enumerate(available):
            placement, cost = self._settled(info, i, placements)
            price += cost
            source = self.derived.get(op.operands[i], "activation")
            keys.append((placement, source))
        for callee in self.chooser.solve(op.callee.string_value(), keys):
            choice = OpChoice(op, callee.arguments, callee.results, callee=callee)
            yield choice, price + callee.cost

    def _constrained(
        self, op: ConstrainOp, available: Available
    ) -> Iterable[tuple[OpChoice, float]]:
        if not op.fixes(self.chooser.axis):
            for placement in available:
                placement = WHOLE if placement == FREE else placement
                yield OpChoice(op, (placement,), (placement,)), 0.0
            return
        info = self.chooser.info(op)
        target = placement_in(op.layout.data, self.chooser.axis)
        if target.kind == "partial":
            raise DistIRError(
                f"dist.constrain cannot ask for a value that is partial over "
                f"{self.chooser.axis!r}; constrain a reduced or split layout"
            )
        price = self._move(
            op.source, available, target, info.operand_bytes[0], may_slice=True
        )
        yield OpChoice(op, (target,), (target,)), price

    def _finish(
        self,
        op: ReturnOp,
        states: dict[State, _Node],
        arguments: Sequence[ArgumentKey],
    ) -> list[FunctionChoice]:
        best: dict[tuple[Placement, ...], FunctionChoice] = {}
        for state, node in sorted(states.items(), key=lambda item: item[1].cost):
            if (
                self.is_entry
                and best
                and node.cost >= min(c.cost for c in best.values())
            ):
                break
            available = [state[self.slots[value]] for value in op.operands]
            choices = node.path()
            placed = self._arguments(arguments, choices)
            price, results = self._returned(op, available, placed)
            cost = node.cost + price
            if results not in best or cost < best[results].cost:
                name = self.function.sym_name.data
                best[results] = FunctionChoice(name, cost, placed, results, choices)
        found = sorted(best.values(), key=lambda choice: choice.cost)
        return found[:MAX_ALTERNATIVES]

    def _returned(
        self,
        op: ReturnOp,
        available: Sequence[Available],
        arguments: Sequence[Placement],
    ) -> tuple[float, tuple[Placement, ...]]:
        """
        How the results leave the function, and the price. A result that replaces an
        argument in the next step must be placed like it; within the program values may
        stay partial.
        """
        chooser, info = self.chooser, self.chooser.info(op)
        total = 0.0
        results: list[Placement] = []
        for i, placements in enumerate(available):
            replaced = chooser.updates.get(i) if self.is_entry else None
            only_partial = all(p.kind == "partial" for p in placements)
            if replaced is not None:
                placement = arguments[replaced]
                value = op.operands[i]
                total += self._move(
                    value,
                    placements,
                    placement,
                    info.operand_bytes[i],
                    may_slice=True,
                )
            elif only_partial and not self.is_entry:
                placement = min(placements)
            else:
                placement, price = self._settled(info, i, placements)
                placement = WHOLE if placement == FREE else placement
                total += price
                if (
                    self.is_entry
                    and placement.kind == "split"
                    and chooser.split_parameters
                ):
                    # Whoever gets the program's result will want it whole.
                    total += _gather_price(info.operand_bytes[i], chooser.parts)
            results.append(placement)
        return total, tuple(results)

    def _arguments(
        self, arguments: Sequence[ArgumentKey], choices: Sequence[OpChoice]
    ) -> tuple[Placement, ...]:
        """Arguments that came free are placed as their first user chose."""
        decided: dict[SSAValue, Placement] = {}
        for choice in choices:
            for value, placement in zip(
                choice.op.operands, choice.operands, strict=True
            ):
                decided.setdefault(value, placement)
        return tuple(
            decided.get(arg, WHOLE) if placement == FREE else placement
            for arg, (placement, _) in zip(
                self.function.body.block.args, arguments, strict=True
            )
        )
