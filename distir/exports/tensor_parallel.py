"""
Column- and row-parallel modules: which outputs may stay split from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import SendOp
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.exports.walk import ProgramRun, RunStep, RunValue
from distir.exports.weights import WeightKind, WeightUse, weight_use


@dataclass(frozen=True)
class ParallelStyle:
    """
    The division of a module among tensor-parallel devices: by columns
    (`ColwiseParallel`) or by rows (`RowwiseParallel`) of its weight. `joined`: whether
    its output (by columns) or its input (by rows) stays in parts between it and a
    module that is split in the other way; otherwise it is whole on each device.
    """

    kind: WeightKind
    columns: bool
    joined: bool = False


@dataclass
class TensorParallelism:
    """
    The modules that the tensor-parallel axis splits, by path, and those that
    `parallelize_module` cannot split as the program does, with the reason.
    """

    styles: dict[str, ParallelStyle] = field(default_factory=dict[str, ParallelStyle])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    splits_sequences: bool = False


def tensor_parallelism(
    run: ProgramRun, axis: str, owners: Mapping[int, str]
) -> TensorParallelism:
    """
    Returns how the forward pass of a program is split over an axis. `owners` has the path
    of the module that each parameter belongs to, by argument.
    """
    chains = _Chains(axis, owners)
    for step in run.steps:
        if step.forward:
            chains.follow(step)
    return chains.found(run.outputs)


class _Chains:
    """
    Follows what modules that are split by columns compute, up to the modules that are split
    by rows. Modules that a value connects form a chain. A chain stays in parts if
    everything between its modules works on a part as on the whole.
    """

    def __init__(self, axis: str, owners: Mapping[int, str]):
        self.axis = axis
        self.owners = owners
        self.uses: dict[str, WeightUse] = {}
        self.refused: dict[str, str] = {}
        self.split_others: set[str] = set()
        self.splits_sequences = False
        self._sources: dict[RunValue, frozenset[str]] = {}
        self._rows: set[RunValue] = set()
        self._chain: dict[str, str] = {}
        self._gathered: set[str] = set()

    def follow(self, step: RunStep) -> None:
        """Takes the next step of the forward pass into account."""
        use = weight_use(step, self.axis, self.owners)
        sources = frozenset[str]().union(
            *(self._sources.get(value, ()) for value in step.operands)
        )
        if use is not None and use.is_split and self._is_sayable(use):
            self._follow_module(step, use, sources)
            return
        if use is not None and not use.is_split:
            self.uses.setdefault(use.module, use)
        if not sources:
            self._watch_others(step)
            return
        self._follow_parts(step, sources)

    def _is_sayable(self, use: WeightUse) -> bool:
        """Whether `parallelize_module` can split a module so; if not, notes why."""
        known = self.uses.get(use.module)
        if use.kind is WeightKind.CONV1D:
            why = "it is no nn.Linear: its weight has the inputs in its rows (Conv1D)"
        elif use.in_runs:
            why = "its parts are several runs of rows, as of a fused projection"
        elif use.out_split and use.in_split:
            why = "both dimensions of its weight are split"
        elif known is not None and known != use:
            why = "its weight is used in two ways"
        else:
            return True
        self.refused[use.module] = why
        return False

    def _follow_module(
        self, step: RunStep, use: WeightUse, sources: frozenset[str]
    ) -> None:
        name = use.module
        self.uses[name] = use
        self._chain.setdefault(name, name)
        result = step.results[0]
        if use.kind is WeightKind.EMBEDDING:
            self._gathered.add(name)
            self._end(sources)
        elif use.in_split:
            self._rows.add(result)
            self._join([*sources, name])
            if not sources:
                self._gathered.add(name)
        else:
            self._end(sources)
            self._sources[result] = frozenset([name])

    def _follow_parts(self, step: RunStep, sources: frozenset[str]) -> None:
        """Follows values that come in parts from modules that are split by columns."""
        op, axis = step.op, self.axis
        moves = isinstance(op, CollectiveOp) and axis in {a.data for a in op.axes.data}
        reduces = any(value.is_partial_over(axis) for value in step.results)
        if moves or reduces or isinstance(op, SendOp | GatheredOp):
            self._end(sources)
            return
        for value in step.operands:
            if self._sources.get(value) or not value.split_over(axis):
                continue
            owner = None if value.view is None else self.owners.get(value.view.index)
            if owner is None or owner not in sources:  # not the bias of a module itself
                self._end(sources)
                self._note_split(value)
                return
        self._join(sources)
        for value in step.results:
            if value.split_over(axis):
                self._sources[value] = sources

    def _watch_others(self, step: RunStep) -> None:
        """Notes what else is split: parameters of other modules, and sequences."""
        for value in step.operands:
            if value in self._rows and step.op.name == "collective.reduce_scatter":
                self.splits_sequences = True
            self._note_split(value)

    def _note_split(self, value: RunValue) -> None:
        if value.view is not None and value.split_over(self.axis):
            owner = self.owners.get(value.view.index)
            if owner is not None:
                self.split_others.add(owner)

    def _join(self, modules: Iterable[str]) -> None:
        names = [self._root(name) for name in modules]
        for name in names[1:]:
            self._chain[self._root(name)] = self._root(names[0])

    def _root(self, name: str) -> str:
        self._chain.setdefault(name, name)
        while self._chain[name] != name:
            name = self._chain[name]
        return name

    def _end(self, sources: Iterable[str]) -> None:
        """Notes that what these modules compute has to be whole somewhere."""
        self._gathered.update(sources)

    def found(self, outputs: Sequence[RunValue]) -> TensorParallelism:
        """Returns the findings of the steps, given the results of the program."""
        for value in outputs:
            self._end(self._sources.get(value, ()))
        whole = {self._root(name) for name in self._gathered}
        has_rows = {self._root(name) for name, use in self.uses.items() if use.in_split}
        styles: dict[str, ParallelStyle] = {}
        for name, use in self.uses.items():
            if use.is_split and name not in self.refused:
                root = self._root(name)
                joined = root in has_rows and root not in whole
                styles[name] = ParallelStyle(use.kind, use.out_split, joined)
        for name in sorted(self.split_others - styles.keys()):
            self.refused.setdefault(
                name, "it is neither an nn.Linear nor an nn.Embedding"
            )
        return TensorParallelism(styles, self.refused, self.splits_sequences)
