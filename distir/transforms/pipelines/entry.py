"""Represents the entry function of a pipeline while the function is being built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist import SendOp
from distir.dialects.dist_attributes import (
    ASYNCHRONOUS,
    GRADIENT_OF,
    MICRO_BATCHES,
)
from distir.program import argument_attributes, set_argument_attributes
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import (
    BlockBody,
    Make,
    StageFunction,
    StageFunctionBuilder,
    StageOps,
)
from distir.transforms.pipelines.structure import Structure

V = TypeVar("V")
"""The representation of a value of the entry function."""


class Entry(Protocol[V]):
    """
    Receives the ops of the entry function from an `Emitter`, in order. The subclass
    `EntryFunction` builds IR from the ops. The grid search has a subclass that builds
    steps of the simulator.
    """

    def arguments(self, types: Sequence[Attribute]) -> Sequence[V]:
        """
        Adds the arguments of the function and returns them. Call this method first.
        """
        ...

    def type_of(self, value: V) -> Attribute:
        """Returns the type of `value`."""
        ...

    def name(self, value: V, hint: str | None) -> None:
        """Names `value` after `hint` if it has no name yet."""
        ...

    def op(self, make: Make, operands: Sequence[V]) -> Sequence[V]:
        """
        Adds the ops that `make` returns for `operands`. Returns the results of the last
        op.
        """
        ...

    def send(self, value: V, type_: Attribute, *, asynchronous: bool) -> V:
        """
        Sends `value` to the mesh of `type_` and returns the received value, which has
        the type `type_`. With `asynchronous`, devices can compute during the send.
        """
        ...

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """
        Returns the interface of a new function for `group` on the mesh `mesh` of its
        stage. The function adds its results to the accumulated values `added`.
        """
        ...

    def call(
        self,
        function: StageFunction,
        common: Sequence[V | None],
        own: Sequence[V],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[V]:
        """
        Adds a call of `function` and returns its results. `common` has an entry for
        each input: the operand if it is the same for all micro-batches, else None. The
        values in `own` replace the Nones in order; further values in `own` follow as
        additional operands. `returned` are the values of the original program to which
        the results correspond. `types` are the types of the results.
        """
        ...


class EntryFunction(BlockBody):
    """Builds the entry function as IR."""

    def __init__(self, structure: Structure, fold: Fold):
        super().__init__()
        self._structure = structure
        self._fold = fold

    def send(
        self, value: SSAValue, type_: Attribute, *, asynchronous: bool
    ) -> SSAValue:
        """
        Adds a `dist.send` of `value`, and returns its result, which has the type
        `type_`.
        """
        send = SendOp.create(
            operands=[value],
            result_types=[type_],
            attributes={ASYNCHRONOUS: UnitAttr()} if asynchronous else {},
        )
        send.result.name_hint = value.name_hint
        self.block.add_op(send)
        return send.result

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """
        Builds a function for `group` that adds its results to the accumulated values
        `added`, and returns the function's interface.
        """
        structure, fold = self._structure, self._fold
        return stage_function(structure, fold, group, mesh, added)[0]

    def call(
        self,
        function: StageFunction,
        common: Sequence[SSAValue | None],
        own: Sequence[SSAValue],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[SSAValue]:
        """
        Adds a `func.call` of `function` and returns its results. `common` has an entry
        for each input: the operand if it is the same for all micro-batches, else None.
        The values in `own` replace the Nones in order; further values in `own` follow
        as additional operands.
        """
        left = iter(own)
        operands = [next(left) if same is None else same for same in common]
        # Like `CallOp(...)`, which is slow with hundreds of operands.
        call = CallOp.create(
            operands=[*operands, *left],
            result_types=types,
            properties={"callee": function.symbol},
        )
        self.block.add_op(call)
        for new, old in zip(call.results, returned, strict=True):
            new.name_hint = old.name_hint
        return call.results

    def finish(self, results: Sequence[SSAValue]) -> FuncOp:
        """Returns the finished function, which returns `results`."""
        old = self._structure.function
        function = self.function(old.sym_name.data, results, old.sym_visibility)
        function.arg_attrs, function.res_attrs = old.arg_attrs, old.res_attrs
        function.attributes.update(old.attributes)
        count = self._structure.micro_batches
        attributes = argument_attributes(function)
        late = [own for own in attributes if GRADIENT_OF in own]
        if late and count > 1:
            for own in late:
                own[MICRO_BATCHES] = MICRO_BATCHES.attr(count)
            set_argument_attributes(function, attributes)
        return function


def stage_function(
    structure: Structure,
    fold: Fold,
    group: StageOps,
    mesh: str,
    added: tuple[SSAValue, ...],
) -> tuple[StageFunction, FuncOp]:
    """
    Builds the function of `group` on the mesh of its stage and adds it to `fold`. The
    function adds its results to the accumulated values `added`. Returns the interface
    of the function, and the function.
    """
    name = group.name if not added else f"{group.name}_accumulate"
    builder = StageFunctionBuilder(structure, fold, group, mesh, added)
    made = builder.build(fold.free_name(name))
    fold.add(made)
    return builder.interface(made), made
