"""
Lists the ops of a distributed program in the order in which they run. Calls are
replaced by the ops of their functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.constants import keeps_value
from distir.dialects.dist import Layout, layout_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import rank_of
from distir.program import (
    ancestors,
    entry_function,
    forward_results,
    functions,
    return_op,
    scope_of,
)
from distir.transforms.repeats.naming import specialise


@dataclass(frozen=True)
class ArgumentView:
    """
    An argument of the entry function, possibly transposed. `index` is the argument's
    position. `dims` has, for each dimension of the view, the argument's dimension.
    """

    index: int
    dims: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RunValue:
    """
    A value in one run of the op that computes it. `view` is the argument of the entry
    function that the value equals, possibly transposed; None if there is no such
    argument.
    """

    type: Attribute
    view: ArgumentView | None = None

    @property
    def layout(self) -> Layout | None:
        """The layout of the value, or None if the value is whole on one device."""
        return layout_of(self.type)

    def split_over(self, axis: str) -> tuple[int, ...]:
        """Returns the dimensions of the value that the mesh axis `axis` splits."""
        layout = self.layout
        dims = layout.dims if layout is not None else ()
        return tuple(
            i for i, own in enumerate(dims) if any(s.axis == axis for s in own)
        )

    def is_partial_over(self, axis: str) -> bool:
        """
        Whether the value is partial over a mesh axis: each device along the axis holds
        one term of the value.
        """
        layout = self.layout
        return layout is not None and axis in layout.partial_axes


@dataclass(frozen=True, eq=False)
class RunStep:
    """
    One run of an op that is not a call.

    - `scope`: the path of the op's module in the source model;
    - `entered`: the op of the entry function: the op itself, or the call in which it
      runs;
    - `forward`: whether a result of the forward pass depends on `entered`.
    """

    scope: str
    op: Operation
    operands: tuple[RunValue, ...]
    results: tuple[RunValue, ...]
    entered: Operation
    forward: bool


@dataclass
class ProgramRun:
    """
    A run of a distributed program. Repeated calls with the same parameters are left
    out, because these calls only process further micro-batches.

    - `steps`: the runs of ops, in order;
    - `outputs`: the results of the program;
    - `calls`: all calls in the entry function, each with a flag: whether results of the
      forward pass depend on the call;
    - `micro_batches`: the largest number of calls of one forward function with the same
      parameters.
    """

    steps: list[RunStep] = field(default_factory=list[RunStep])
    outputs: list[RunValue] = field(default_factory=list[RunValue])
    calls: list[tuple[bool, CallOp]] = field(default_factory=list[tuple[bool, CallOp]])
    micro_batches: int = 1

    @staticmethod
    def of(module: ModuleOp) -> ProgramRun:
        """
        Returns the run of the entry function of `module`. Raises DistIRError if there
        is no entry function.
        """
        return _Walker(module).run()


class _Walker:
    def __init__(self, module: ModuleOp):
        self.functions = functions(module)
        self.entry = entry_function(module)

    def run(self) -> ProgramRun:
        entry, found = self.entry, ProgramRun()
        returned = return_op(entry).operands
        forward = ancestors([returned[i] for i in forward_results(entry)])
        values: dict[SSAValue, RunValue] = {
            a: RunValue(a.type, ArgumentView(a.index, tuple(range(rank_of(a.type)))))
            for a in entry.body.block.args
        }
        repeats: dict[tuple[bool, tuple[ArgumentView, ...]], int] = {}
        for op in entry.body.block.ops:
            if isinstance(op, ReturnOp):
                break
            if isinstance(op, CallOp):
                views = tuple(v for o in op.operands if (v := values[o].view))
                key = (op in forward, views)
                repeats[key] = repeats.get(key, 0) + 1
                found.calls.append((op in forward, op))
                if views and repeats[key] > 1:
                    values.update((r, RunValue(r.type)) for r in op.results)
                    continue
            found.steps += self._walk(op, op, op in forward, "", values)
        found.outputs = [values[value] for value in returned]
        own = (n for (is_forward, views), n in repeats.items() if is_forward and views)
        found.micro_batches = max(own, default=1)
        return found

    def _walk(
        self,
        op: Operation,
        entered: Operation,
        forward: bool,
        call_scope: str,
        values: dict[SSAValue, RunValue],
    ) -> Iterator[RunStep]:
        """
        Yields the runs of `op` and of the ops in the function that it calls. Adds the
        results of `op` to `values`.
        """
        own = scope_of(op)
        scope = specialise(own, call_scope) if call_scope else own
        operands = tuple(values[value] for value in op.operands)
        if not isinstance(op, CallOp):
            view = _view(op, operands)
            results = tuple(
                RunValue(r.type, view if i == 0 else None)
                for i, r in enumerate(op.results)
            )
            values.update(zip(op.results, results, strict=True))
            yield RunStep(scope, op, operands, results, entered, forward)
            return
        callee = self.functions[op.callee.string_value()]
        block = callee.body.block
        inner: dict[SSAValue, RunValue] = dict(zip(block.args, operands, strict=True))
        for called in block.ops:
            if isinstance(called, ReturnOp):
                for result, value in zip(op.results, called.operands, strict=True):
                    values[result] = inner[value]
            else:
                yield from self._walk(called, entered, forward, scope, inner)


def _view(op: Operation, operands: Sequence[RunValue]) -> ArgumentView | None:
    """
    Returns the argument that the first result of `op` equals, possibly transposed, or
    None if there is no such argument.
    """
    view = operands[0].view if operands else None
    if view is None:
        return None
    if op.name == "train.unflatten":
        return ArgumentView(view.index, tuple(range(rank_of(op.results[0].type))))
    if op.name == "onnx.Cast" or keeps_value(op):
        return view
    if op.name != "onnx.Transpose":
        return None
    assert isinstance(op, OnnxOp)
    order = op.attribute("perm") or range(len(view.dims))[::-1]
    return ArgumentView(view.index, tuple(view.dims[i] for i in order))


def block_of(scope: str) -> str | None:
    """
    Returns the path of the layer that contains the module with the path `scope`. The
    layer is an element of the outermost list of modules. Returns None if the module is
    in no list.
    """
    parts = scope.split(".")
    ends = [i for i, part in enumerate(parts) if part.isdecimal()]
    return ".".join(parts[: ends[0] + 1]) if ends else None
