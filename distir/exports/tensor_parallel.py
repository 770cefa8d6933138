"""
Finds column- and row-parallel modules, and the values that may stay split between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import SendOp
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.exports.walk import ProgramRun, RunStep, RunValue
from distir.exports.weights import WeightKind, WeightUse, weight_use


@dataclass(frozen=True)
class ParallelStyle:
    """
    The division of a module's weight among the tensor-parallel devices. The weight is
    divided by columns (`ColwiseParallel`) or by rows (`RowwiseParallel`). `joined` is
    True if a column-parallel module's output, or a row-parallel module's input, stays
    split between the two modules. Otherwise the whole value is on each device.
    """

    kind: WeightKind
    columns: bool
    joined: bool = False


@dataclass
class TensorParallelism:
    """
    The division of modules over the tensor-parallel axis. `styles` has the divided
    modules by path. `refused` has the modules that `parallelize_module` cannot divide
    as the program does, with the reason. `splits_sequences` tells whether the program
    uses sequence parallelism.
    """

    styles: dict[str, ParallelStyle] = field(default_factory=dict[str, ParallelStyle])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    splits_sequences: bool = False


def tensor_parallelism(
    run: ProgramRun, axis: str, owners: Mapping[int, str]
) -> TensorParallelism:
    """
    Returns the division of the forward pass of a program over `axis`. `owners` maps the
    index of each parameter among the arguments to the path of its module.
    """
    chains = _Chains(axis, owners)
    for step in run.steps:
        if step.forward:
            chains.follow(step)
    return chains.found(run.outputs)


class _Chains:
    """
    Follows values from column-parallel modules to the row-parallel modules that use
    them. Modules connected by a value form a chain. The values of a chain stay split if
    every op between its modules computes on a part the same as on the whole.
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
        """Updates the chains with the next step of the forward pass."""
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
        """
        Whether `parallelize_module` can split the module as the program does. If not,
        records the reason in `refused`.
        """
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
        """Follows the split results of column-parallel modules through one step."""
        op, axis = step.op, self.axis
        moves = isinstance(op, CollectiveOp) and axis in {a.data for a in op.axes.data}
        reduces = any(value.is_partial_over(axis) for value in step.results)
        if moves or reduces or isinstance(op, SendOp | GatheredOp | OpaqueBase):
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
        """
        Records whether sequences are split, and the modules that have split parameters.
        """
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
        """
        Records that the results of the modules `sources` do not stay split: they must
        be gathered.
        """
        self._gathered.update(sources)

    def found(self, outputs: Sequence[RunValue]) -> TensorParallelism:
        """
        Returns the division that all followed steps imply. `outputs` are the results of
        the program.
        """
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
