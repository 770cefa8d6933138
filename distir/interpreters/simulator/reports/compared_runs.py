"""
Published runs that resemble a simulated run, and the errors of their predictions.

`compared_runs.json` beside this file holds one entry per kind of device and
parallelism. `bench/accuracy.py --record` writes this file from runs that no profile was
fitted to.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.onnx_ops.traits import SAME_VALUES
from distir.dialects.tensors import rank_of
from distir.dialects.train_ops.float8 import is_narrow
from distir.interpreters.simulator.simulation import Simulation
from distir.program import BATCH_ROLES, arguments_of, is_training_step

RECORD = Path(__file__).with_name("compared_runs.json")

KINDS = ("data", "ZeRO 1", "ZeRO 3", "tensor", "context", "expert", "pipeline")
"""The kinds of parallelism, in the order in which a text lists them."""


@dataclass(frozen=True)
class ComparedRuns:
    """
    Published runs of one kind, and the errors of their predicted step times.

    - `hardware`: the kind of device, such as `H100`;
    - `parallelism`: the kinds of parallelism, as `parallelism_of` returns them;
    - `float8`: whether products were computed in 8-bit floats;
    - `runs`: the number of runs; `sources`: the publications that report the runs;
    - `mean`, `largest`: the mean and the largest absolute relative error.
    """

    hardware: str
    parallelism: tuple[str, ...]
    float8: bool
    runs: int
    mean: float
    largest: float
    sources: tuple[str, ...]

    def __str__(self) -> str:
        runs = f"{self.runs} published run{'s' if self.runs > 1 else ''}"
        return (
            f"{runs} with {parallelism_text(self.parallelism, self.float8)} on "
            f"{self.hardware} ({', '.join(self.sources)}): predicted step times were "
            f"{100 * self.mean:.1f} % off in the mean, {100 * self.largest:.1f} % at most"
        )


@cache
def compared_runs() -> tuple[ComparedRuns, ...]:
    """Returns the entries of `compared_runs.json`."""
    return tuple(
        ComparedRuns(
            **entry
            | {
                "parallelism": tuple(entry["parallelism"]),
                "sources": tuple(entry["sources"]),
            }
        )
        for entry in json.loads(RECORD.read_text("utf-8"))
    )


def record(entries: Sequence[ComparedRuns]) -> str:
    """Returns the text of `compared_runs.json` with the given entries."""
    lines = [json.dumps(asdict(entry)) for entry in entries]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def accuracy_note(result: Simulation) -> str:
    """
    Returns a sentence on the errors of predictions for published runs on the same
    devices, with the same kinds of parallelism. If there are no such runs, the sentence
    says so. Returns "" for programs that do not train and for simulations without a
    profile, because no published run is compared with such predictions.
    """
    if not result.profiles or not is_training_step(result.run.entry):
        return ""
    hardware = " and ".join(
        dict.fromkeys(
            result.run.device_map.hardware.kinds[d].name for d in result.devices
        )
    )
    kinds, float8 = parallelism_of(result.run.entry), uses_float8(result.run.entry)
    for found in compared_runs():
        if (found.hardware, found.parallelism, found.float8) == (
            hardware,
            kinds,
            float8,
        ):
            return f"compared: {found}"
    return (
        f"no published run with {parallelism_text(kinds, float8)} on {hardware} was "
        f"compared with its prediction"
    )


def parallelism_text(kinds: Sequence[str], float8: bool = False) -> str:
    """
    Returns kinds of parallelism, such as `data`, as words for a sentence. With
    `float8`, the words mention 8-bit floats.
    """
    text = "one device"
    if kinds:
        *others, last = kinds
        text = f"{', '.join(others)} and {last}" if others else last
        text += " parallelism"
    return f"{text} in float8" if float8 else text


def parallelism_of(entry: FuncOp) -> tuple[str, ...]:
    """
    Returns the kinds of parallelism of a distributed program, in the order of `KINDS`,
    from the layouts of its entry function's arguments:

    - an axis that splits the first dimension of inputs is `data`; if it splits
      parameters too, `ZeRO 3`; if it splits optimizer states only, or each parameter is
      gathered once a step, `ZeRO 1`; if the only parameters that it splits have three
      dimensions or more, `expert`;
    - an axis that splits another dimension of inputs is `context`;
    - an axis that splits parameters and no input is `tensor`;
    - arguments on several meshes belong to a `pipeline`.

    The result is empty for a sequential program.
    """
    batch: set[str] = set()
    context: set[str] = set()
    split: dict[str, dict[str, list[int]]] = {
        role: defaultdict(list) for role in ("parameter", "state")
    }
    meshes: set[str] = set()
    again: set[str] = set()
    for argument in arguments_of(entry):
        layout = argument.layout
        if layout is None:
            continue
        if argument.role == "parameter" and _is_gathered_again(argument.value):
            again.update(shard.axis for dim in layout.dims for shard in dim)
        meshes.add(layout.mesh)
        for i, dim in enumerate(layout.dims):
            axes = [shard.axis for shard in dim]
            if argument.role in BATCH_ROLES:
                (context if i else batch).update(axes)
            elif argument.role in split:
                for axis in axes:
                    split[argument.role][axis].append(rank_of(argument.type))
    parameters, states = split["parameter"], split["state"]
    found: set[str] = set()
    for axis in batch:
        if axis not in parameters:
            found.add("ZeRO 1" if axis in states else "data")
        elif min(parameters[axis]) > 2:
            found.add("expert")
        else:
            found.add("ZeRO 3" if axis in again else "ZeRO 1")
    if context - batch:
        found.add("context")
    if set(parameters) - batch - context:
        found.add("tensor")
    if len(meshes) > 1:
        found.add("pipeline")
    return tuple(kind for kind in KINDS if kind in found)


def _is_gathered_again(parameter: SSAValue) -> bool:
    """
    Whether parts of a parameter are gathered for each use, as in ZeRO stage 3: the
    parts are gathered several times, or by functions that take the parts. In stages 1
    and 2, the parts are gathered only once, after the update.
    """
    pending, gathers = [parameter], 0
    while pending:
        for use in pending.pop().uses:
            if isinstance(use.operation, CallOp):
                return True
            if isinstance(use.operation, AllGatherOp):
                gathers += 1
            elif SAME_VALUES & {use.operation.name}:
                pending += use.operation.results
    return gathers > 1


def uses_float8(entry: FuncOp) -> bool:
    """Whether the program of an entry function computes with 8-bit or 4-bit floats."""
    module = entry.parent_op()
    assert module is not None
    # By identity, as hashing a type is slow.
    types = {id(r.type): r.type for op in module.walk() for r in op.results}
    return any(
        is_narrow(type_.element_type)
        for type_ in types.values()
        if isinstance(type_, TensorType)
    )
