"""The choice for one mesh axis over a whole program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import REDUCE_LATE, ConstrainOp
from distir.sharding.choice.candidates import OpCandidates, OpLayouts
from distir.sharding.choice.choices import ArgumentKey, FunctionChoice, OpChoice
from distir.sharding.choice.placement import Placement, placement_in
from distir.sharding.choice.signatures import Signatures
from distir.sharding.choice.solver import FunctionSolver
from distir.sharding.mesh import Mesh


class AxisChooser:
    """
    Chooses for one axis of a mesh.

    - `layouts`: what the axes before it do to each op.
    - `updates`: results of the entry function that replace an argument in the next
      step, by index; they are placed like it.
    - `split_parameters`: whether parameters (and what derives from parameters and
      constants only) may start a split. For a data axis they may not: only a split
      input, label or annotated parameter does.
    - `is_forward`: whether the program is the forward of a training step, whose backward
      will follow what is chosen for the parameters.
    - `signatures`: says which ops are alike.
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
        signatures: Signatures,
        is_forward: bool = False,
    ):
        self.functions = functions
        self.entry = entry
        self.updates = updates
        self.mesh = mesh
        self.axis = axis
        self.parts = mesh.size(axis)
        self.layouts = layouts
        self.split_parameters = split_parameters
        self.is_forward = is_forward
        self._signatures = signatures
        self._infos: dict[Operation, OpCandidates] = {}
        self._candidates: dict[int, OpCandidates] = {}
        self.priced: dict[tuple[object, ...], list[tuple[OpChoice, float]]] = {}
        """What ops can do, by all that it depends on (`OpOptions`)."""
        self._hints: dict[str, dict[SSAValue, set[Placement]]] = {}
        self._late: dict[str, set[SSAValue]] = {}
        self._solved: dict[
            tuple[str, tuple[ArgumentKey, ...]], list[FunctionChoice]
        ] = {}

    def info(self, op: Operation) -> OpCandidates:
        """The op's rule and candidates on this axis."""
        found = self._infos.get(op)
        if found is None:
            layouts = self.layouts.get(op)
            signature = self._signatures.of(op, layouts)
            found = self._candidates.get(signature)
            if found is None:
                rule = self._signatures.rule(op)
                found = OpCandidates(op, rule, layouts, self.mesh, self.axis)
                self._candidates[signature] = found
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
            solver = FunctionSolver(self, self.functions[name])
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
            factors |= set(self.hinted_factors(op, hints))
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
        constrained = (
            isinstance(op, ConstrainOp)
            for function in self.functions.values()
            for op in function.body.block.ops
        )
        if any(constrained):
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
                for key in self.hinted_factors(op, wishes):
                    candidate = info.candidate(*key)
                    if candidate is None:
                        continue
                    for value, p in zip(op.operands, candidate.operands, strict=True):
                        if p.kind == "split":
                            wishes.setdefault(value, set()).add(p)
        return [wishes.get(arg, set()) for arg in block.args]

    def late(self, name: str) -> set[SSAValue]:
        """
        Values whose partial sums are reduced later: what `dist.reduce_late` asks for the
        operands of an op, and what they follow from by linear ops alone.
        """
        if name not in self._late:
            found = self._late[name] = set[SSAValue]()
            for op in reversed(list(self.functions[name].body.block.ops)):
                asked = REDUCE_LATE in op.attributes
                if not asked and not any(r in found for r in op.results):
                    continue
                for linear in self.info(op).rule.linear:
                    if len(linear.operands) == 1:
                        (index,) = linear.operands
                        value = op.operands[index]
                        # Another user may need the sum at once.
                        if value.has_one_use():
                            found.add(value)
        return self._late[name]

    def hinted_factors(
        self, op: Operation, hints: Mapping[SSAValue, set[Placement]]
    ) -> Iterable[tuple[int, int | None]]:
        """Factors with run lengths that the users of an op's results hint at."""
        info = self.info(op)
        for index, result in enumerate(op.results):
            for placement in hints.get(result, ()):
                found = info.factor_of(True, index, placement)
                if found is not None:
                    yield found
