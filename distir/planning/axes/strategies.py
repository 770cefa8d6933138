"""
The strategies of an op on one mesh axis. A strategy is a placement for each operand and
each result.

The op's sharding rule says which strategies are legal, and `AxisPolicy` restricts the
legal strategies to the purpose of the axis: an axis splits either parameters or inputs,
and a split that serves neither purpose is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xdsl.ir import Operation, OpResult

from distir.dialects.constants import is_direct_constant
from distir.dialects.dist import ConstrainOp
from distir.dialects.onnx_ops.traits import SIZE_OPERANDS
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.planning.axes.alternatives import OpAlternative, Source, Take
from distir.planning.axes.axis_op import AxisOp
from distir.planning.axes.policy import AxisPolicy
from distir.planning.graph.strategies import (
    AxisStrategy,
    PassPartial,
    SplitFactor,
    Strategy,
)
from distir.program import describe
from distir.sharding.placement import (
    FREE,
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
    placement_in,
)

WITHOUT_PARAMETERS = 1 / 32
"""
The weight of work on activations alone, on an axis that splits parameters. The purpose
of such an axis is to split work that involves parameters, so this work is split at any
price of communication. Other work is split only if it pays on devices that compute
about 128 floating-point operations while they send a byte.
"""


class OperandFacts(NamedTuple):
    """
    Facts about an operand that hold before any layout is chosen.

    - `possible`: the placements in which the operand may be available;
    - `source`: whether the operand is computed from parameters, constants or
      activations;
    - `requested`: whether the user requested the operand's split.
    """

    possible: tuple[Placement, ...]
    source: Source
    requested: bool


def takes_one_value(op: Operation) -> bool:
    """
    Whether an op has a single input value. All further operands must be computed from
    this value alone, as a quantisation scale is, or be constants that describe the
    result's shape, such as the bounds of a slice.
    """
    values = list(op.operands)
    if op.name in SIZE_OPERANDS:
        values = [v for v in values if not is_direct_constant(v)]
    for value in values[1:]:
        # Not `isinstance`, which is slow where the answer is no.
        if type(value) is not OpResult:
            return False
        sources = value.op.operands
        if not sources or any(source is not values[0] for source in sources):
            return False
    return bool(values)


class OpStrategies:
    """Enumerates the strategies of an op. Equal ops share the result."""

    def __init__(
        self,
        op: Operation,
        info: AxisOp,
        policy: AxisPolicy,
        first_hints: frozenset[SplitPlacement] = frozenset(),
    ):
        """
        Prepares the strategies of `op`. `first_hints` are splits of its first operand
        that later ops could use without communication.
        """
        self.op = op
        self.info = info
        self.policy = policy
        self.first_hints = first_hints

    def of(
        self,
        operands: Sequence[OperandFacts],
        hints: Iterable[frozenset[SplitPlacement]],
        requested: Iterable[frozenset[SplitPlacement]],
    ) -> list[OpAlternative]:
        """
        Returns the alternatives of the op; the first alternative works on replicated
        values. `operands` are the facts about the op's operands. `hints` and
        `requested` have an entry for each result: the splits that later ops could use
        without communication, and the splits that the program requests.
        """
        if isinstance(self.op, ConstrainOp):
            return self._constrained(self.op, operands[0])
        found: dict[tuple[AxisStrategy, tuple[Take, ...]], None] = {}
        count = len(operands)
        if self.info.own is not None:  # one strategy, which whole operands are cut for
            self._add(found, None, (Take.CUT,) * count)
            return [OpAlternative(*s, self.info.cost(s[0])) for s in found]
        self._add(found, None, (Take.MOVED,) * count)
        for split, takes in self._splits(operands, hints, requested):
            if not self._is_foreign(operands, split.factor):
                self._add(found, split, takes)
        found |= dict.fromkeys(self._linear(operands))
        asked = self.policy.asked_rows(self.op)
        if asked is not None:
            own = {s: None for s in found if s[0].operands[0] == asked}
            found = own or found
        without = self.policy.split_parameters and all(
            f.source == "activation" for f in operands
        )
        weight = WITHOUT_PARAMETERS if without else 1
        return [
            OpAlternative(
                *s, weight * self.info.cost(s[0]) + self._paid(s[0], operands)
            )
            for s in found
        ]

    def _paid(self, strategy: AxisStrategy, operands: Sequence[OperandFacts]) -> float:
        """
        Returns the price of the communication inside the op while it computes. The
        price is 0 if the communication follows from the split of an operand that the
        user requested.
        """
        asked = any(
            facts.requested and isinstance(p, SplitPlacement) and p in facts.possible
            for facts, p in zip(operands, strategy.operands, strict=True)
        )
        return 0.0 if asked else self.info.exchanged(strategy)

    def _add(
        self,
        found: dict[tuple[AxisStrategy, tuple[Take, ...]], None],
        split: SplitFactor | None,
        takes: tuple[Take, ...],
    ) -> None:
        c = self.info.strategy(split)
        if c is not None:
            # An operand that is needed whole is communicated in any case.
            takes = tuple(
                Take.MOVED
                if not isinstance(p, SplitPlacement) and t is not Take.GATHERED
                else t
                for p, t in zip(c.operands, takes, strict=True)
            )
            found[c, takes] = None

    def _splits(
        self,
        operands: Sequence[OperandFacts],
        hints: Iterable[frozenset[SplitPlacement]],
        requested: Iterable[frozenset[SplitPlacement]],
    ) -> Iterable[tuple[SplitFactor, tuple[Take, ...]]]:
        """
        Yields the splits worth trying, with the way in which each operand may be
        obtained. A split is worth trying in three cases:

        - an operand is split already; whole operands may then be cut to match;
        - a parameter starts the split, or is split by a choice of this plan; whole
          operands may then not be cut;
        - the user requested the split.
        """
        info, policy, count = self.info, self.policy, len(operands)
        for split in self._hinted(requested):
            yield split, (Take.CUT,) * count
        # A parameter that is stored split over a data axis is gathered for its use where an
        # activation is there in parts; contractions work on those wherever they can. But
        # along a dimension of all values (experts) work may be split as the parameter is.
        stored_apart = not policy.split_parameters and any(
            f.source == "activation"
            and any(isinstance(p, SplitPlacement) for p in f.possible)
            for f in operands
        )
        for i, facts in enumerate(operands):
            for placement in facts.possible:
                if not isinstance(placement, SplitPlacement):
                    continue
                split = info.factor_of(False, i, placement)
                if split is None:
                    continue
                supports = facts.source == "activation" or facts.requested
                takes = [Take.CUT if supports else Take.MOVED] * count
                together = info.rule.flops and all(
                    any(split.factor in dim for dim in dims)
                    for dims in (*info.rule.operands, *info.rule.results)
                )
                if stored_apart and facts.source != "activation" and not together:
                    if info.rule.flops:
                        continue
                    takes = [
                        Take.GATHERED if f.source == "activation" else t
                        for f, t in zip(operands, takes, strict=True)
                    ]
                # An activation that is available in other parts may be redistributed.
                is_activation = facts.source == "activation"
                takes[i] = Take.MOVED if is_activation else Take.AS_IS
                yield split, tuple(takes)
        # A parameter that is prepared for its use is itself stored split for that.
        takes = [Take.MOVED] * count
        if self._prepares(operands):
            takes[0] = Take.AS_IS
            takes[1:] = [Take.CUT] * (count - 1)
        yield from ((split, tuple(takes)) for split in self._started(operands, hints))

    def _started(
        self,
        operands: Sequence[OperandFacts],
        hints: Iterable[frozenset[SplitPlacement]],
    ) -> Iterable[SplitFactor]:
        """
        Yields the splits that parameters start. A parameter starts splits in three
        cases:

        - it is an operand of a contraction;
        - its placement is not decided, and this op prepares it for a contraction
          (transposes or casts it);
        - the op looks up rows of it; each device then has some of the rows.

        A parameter that is added to an activation, such as a bias or a table of
        positions, starts no split, because that would split the sequence.
        """
        rule, policy = self.info.rule, self.policy
        starts = [
            i
            for i, f in enumerate(operands)
            if FREE in f.possible
            or (
                policy.split_parameters
                and f.source == "parameter"
                and REPLICATED in f.possible
            )
        ]
        if not starts:
            return
        everywhere = rule.flops or self._prepares(operands)
        hinted = set(self._hinted(hints))
        if self._prepares(operands):
            # A scale has no dimension left that could say how its parameter is wanted.
            splits = (self.info.factor_of(False, 0, own) for own in self.first_hints)
            hinted.update(split for split in splits if split is not None)
        wanted = sorted(hinted, key=str)
        for i in starts:
            for dim in rule.operands[i]:
                for factor in dim:
                    if everywhere or rule.factors[factor].kind == "reduction":
                        yield SplitFactor(factor)
                        yield from (s for s in wanted if s.factor == factor)

    def _prepares(self, operands: Sequence[OperandFacts]) -> bool:
        """
        Whether the op prepares a parameter for its use (for example transposes it) and
        the parameter's placement is not decided yet.
        """
        return takes_one_value(self.op) and FREE in operands[0].possible

    def _hinted(
        self, hints: Iterable[frozenset[SplitPlacement]]
    ) -> Iterable[SplitFactor]:
        for index, placements in enumerate(hints):
            for placement in sorted(placements, key=str):
                split = self.info.factor_of(True, index, placement)
                if split is not None:
                    yield split

    def _is_foreign(self, operands: Sequence[OperandFacts], factor: int) -> bool:
        """
        Whether a split of `factor` conflicts with an axis that splits parameters. On
        such an axis, a contraction with a parameter must split a dimension of the
        parameter, and a contraction of activations alone, such as attention scores,
        must not become a partial sum.
        """
        rule = self.info.rule
        if not self.policy.split_parameters or not rule.flops:
            return False
        parameters = [i for i, f in enumerate(operands) if f.source == "parameter"]
        if parameters:
            return not any(
                factor in dim for i in parameters for dim in rule.operands[i]
            )
        return rule.factors[factor].kind == "reduction" and all(
            f.source == "activation" for f in operands
        )

    def _linear(
        self, operands: Sequence[OperandFacts]
    ) -> Iterable[tuple[AxisStrategy, tuple[Take, ...]]]:
        """
        Yields the strategies that let partial values pass, for sets of operands in
        which the rule is linear.
        """
        for number, linear in enumerate(self.info.rule.linear):
            reductions = [
                {
                    p.reduction
                    for p in operands[i].possible
                    if isinstance(p, PartialPlacement)
                }
                for i in linear.operands
            ]
            common = set[str].intersection(*reductions) if reductions else set[str]()
            for reduction in sorted(common & linear.reductions):
                partial = PartialPlacement(reduction)
                passes = [i in linear.operands for i in range(len(operands))]
                strategy = Strategy(
                    (PassPartial(number, reduction),),
                    tuple(partial if p else REPLICATED for p in passes),
                    (partial,) * len(self.info.result_bytes),
                )
                yield strategy, tuple(Take.AS_IS if p else Take.MOVED for p in passes)

    def _constrained(
        self, op: ConstrainOp, operand: OperandFacts
    ) -> list[OpAlternative]:
        axis = self.policy.program.axis
        if op.fixes(axis):
            target = placement_in(op.layout.data, axis)
            if isinstance(target, PartialPlacement):
                raise DistIRError(
                    f"dist.constrain cannot ask for a value that is partial over "
                    f"{axis!r}; constrain a reduced or split layout"
                )
            self._check_divisible(op, target)
            found = [(target, Take.CUT)]
        else:
            kept = (REPLICATED if p == FREE else p for p in operand.possible)
            # Splits that leave nothing to split for the axes planned before are undone.
            found = [
                (p, Take.AS_IS) for p in dict.fromkeys(kept) if self._is_divisible(p)
            ] or [(REPLICATED, Take.MOVED)]
        return [
            OpAlternative(Strategy((None,), (p,), (p,)), (take,), 0.0)
            for p, take in found
        ]

    def _is_divisible(self, placement: Placement) -> bool:
        """
        Whether the sizes allow the first operand to have `placement` inside the splits
        of the axes planned before this one.
        """
        is_split = isinstance(placement, SplitPlacement)
        return not is_split or self.info.fitting(0, placement) is not None

    def _check_divisible(self, op: ConstrainOp, target: Placement) -> None:
        """
        Raises DistIRError if a constraint requests a split that the sizes do not allow
        inside the splits of the axes planned before this one.
        """
        if not isinstance(target, SplitPlacement) or self._is_divisible(target):
            return
        mesh, axis = self.info.mesh, self.policy.program.axis
        before = self.info.base.operands[0].dim(target.dim)
        axes = [*(shard.axis for shard in before), axis]
        parts = " x ".join(f"{name}={mesh.size(name)}" for name in axes)
        what = op.source.owner if isinstance(op.source.owner, Operation) else op
        raise DistIRError(
            f"{describe(what)}: dimension {target.dim} of size "
            f"{shape_of(op.source.type)[target.dim]} is to be split over {parts} devices, "
            f"which do not divide it; choose other sizes of these axes, or ask for one of "
            f"the splits"
        )
