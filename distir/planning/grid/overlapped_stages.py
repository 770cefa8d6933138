"""
Overlap of communication in the compiled functions of pipeline stages, as
`distribute --overlap tp,pp` makes it. All-to-alls of experts start early. A rank's
forward and its next backward, each with all-to-alls, may become one function.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.kinds import ExchangeKind
from distir.dialects.dist_attributes import ASYNCHRONOUS, BUCKET
from distir.dialects.train_ops.float8 import is_scale
from distir.interpreters.simulator.engine.compiled import CallStep, CompiledFunction
from distir.planning.layouts.fitted_plan import Step
from distir.planning.plans.plan import OVERLAPPED
from distir.transforms.overlap.kinds import erase_kinds, write_kind
from distir.transforms.overlap.paired_calls import exchanges_floats, joined_function
from distir.transforms.overlap.place import CommunicationPlacer


def fastest(before: Step, others: Sequence[Step]) -> Step:
    """
    Returns the step that `overlap_communication` chooses: the fastest one, and the one
    with the least memory among equally fast ones. If the step without overlap,
    `before`, fits into memory, only steps that fit count, or that need no more memory.
    """
    limit = before.peak_bytes if before.fits else None

    def rank(step: Step) -> tuple[bool, float, int]:
        fits = limit is None or step.fits or step.peak_bytes <= limit
        return not fits, step.seconds, step.peak_bytes

    # A step that is no faster is not worth a change of the program.
    faster = [step for step in others if rank(step)[:2] < rank(before)[:2]]
    return min([before, *faster], key=rank)


class OverlappedStages:
    """
    The functions of stages whose all-to-alls overlap computation. `bodies` has the IR
    of each compiled function, from which joined functions are made.
    """

    def __init__(self) -> None:
        self.bodies: dict[CompiledFunction, FuncOp] = {}
        self._named: dict[CompiledFunction, FuncOp] = {}
        self._exchange: dict[CompiledFunction, bool] = {}

    def place(self, function: FuncOp) -> None:
        """Orders the ops of a function so that its all-to-alls overlap computation."""
        for op in function.body.block.ops:
            if isinstance(op, CollectiveOp):
                is_moved = isinstance(op, ExchangeKind) or is_scale(op)
                write_kind(op, "tp" if is_moved else "")
        CommunicationPlacer(1, OVERLAPPED).place(function)
        erase_kinds(function)

    def exchanges(self, compiled: CompiledFunction) -> bool:
        """
        Whether a compiled function, or a function that it calls, exchanges floats by
        all-to-alls.
        """
        if compiled not in self._exchange:
            self._exchange[compiled] = any(
                self.exchanges(step.callee)
                if isinstance(step, CallStep)
                else exchanges_floats(step.op)
                for step in compiled.steps
            )
        return self._exchange[compiled]

    def joined(self, pair: Sequence[CompiledFunction], name: str) -> FuncOp:
        """
        Returns a function called `name` that does the work of both functions of `pair`,
        with their ops taking turns at all-to-alls.
        """
        callees = [self._apart(compiled) for compiled in pair]
        known = {body.sym_name.data: body for body in self._named.values()}
        function = joined_function(callees, known, name)
        self.place(function)
        return function

    def _apart(self, compiled: CompiledFunction) -> FuncOp:
        """
        Returns a copy of the IR of a compiled function, without buckets and overlap.
        Functions of several programs may have one name, so that the copy and the copies
        of the functions that it calls get names of their own.
        """
        if compiled in self._named:
            return self._named[compiled]
        body = self.bodies[compiled]
        called: dict[Operation, CompiledFunction] = {
            step.op: step.callee
            for step in compiled.steps
            if isinstance(step, CallStep)
        }
        symbols = {
            op: self._apart(callee).sym_name.data for op, callee in called.items()
        }
        copy = body.clone()
        pairs = zip(body.body.block.ops, copy.body.block.ops, strict=True)
        for old, new in list(pairs):
            new.attributes.pop(ASYNCHRONOUS, None)
            new.attributes.pop(BUCKET, None)
            if isinstance(new, CallOp):
                new.properties["callee"] = SymbolRefAttr(symbols[old])
        name = f"{body.sym_name.data}.{len(self._named)}"
        copy.properties["sym_name"] = StringAttr(name)
        self._named[compiled] = copy
        return copy
