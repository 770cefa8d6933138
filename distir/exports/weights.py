"""
Finds the matrix parameter of each PyTorch module, and the dimensions of the matrix that
are split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import PRODUCTS
from distir.exports.walk import ArgumentView, RunStep, RunValue


class WeightKind(Enum):
    """
    The kind of module that uses a matrix. `LINEAR` and `EMBEDDING` are `nn.Linear` and
    `nn.Embedding`. `CONV1D` is a product whose matrix has a row for each input, as in
    the `Conv1D` of transformers.
    """

    LINEAR = "Linear"
    EMBEDDING = "Embedding"
    CONV1D = "Conv1D"


@dataclass(frozen=True)
class WeightUse:
    """
    A step that multiplies by a parameter, or that looks up rows of a parameter.

    - `kind`: the kind of module;
    - `module`: the path of the module;
    - `view`: the parameter, possibly transposed;
    - `out_split`: whether the tensor-parallel axis splits the outputs of the module.
      For an embedding these are the columns of its table;
    - `in_split`: whether the axis splits the dimension that is summed over. For an
      embedding these are the rows of its table;
    - `in_runs`: whether the axis deals the elements of a dimension out to the devices
      in turn, several at a time. PyTorch's placements cannot express such a split.
    """

    kind: WeightKind
    module: str
    view: ArgumentView
    out_split: bool
    in_split: bool
    in_runs: bool

    @property
    def is_split(self) -> bool:
        """Whether the tensor-parallel axis splits the parameter."""
        return self.out_split or self.in_split


def weight_use(
    step: RunStep, axis: str | None, owners: Mapping[int, str]
) -> WeightUse | None:
    """
    Returns the use of a parameter as a matrix by `step`, or None if `step` has no such
    use. `axis` is the tensor-parallel axis of the mesh, or None. `owners` maps the
    index of each parameter among the arguments to the path of its module.
    """
    op, operands = step.op, step.operands
    if not isinstance(op, OnnxOp):
        return None
    if op.name == "onnx.Gather":
        return _use(step, WeightKind.EMBEDDING, operands[0], 0, axis, owners)
    if op.name not in PRODUCTS:
        return None
    weight = operands[1]
    if weight.view is None or len(weight.view.dims) != 2:
        return None
    is_transposed = op.name == "onnx.Gemm" and bool(op.attribute("transB"))
    inputs = 1 if is_transposed else 0
    # A Linear module has a row for each output.
    linear = weight.view.dims[inputs] == 1
    kind = WeightKind.LINEAR if linear else WeightKind.CONV1D
    return _use(step, kind, weight, inputs, axis, owners)


def _use(
    step: RunStep,
    kind: WeightKind,
    weight: RunValue,
    inputs: int,
    axis: str | None,
    owners: Mapping[int, str],
) -> WeightUse | None:
    """
    Returns the use of `weight` as a matrix in which the dimension `inputs` is summed
    over. Returns None if `weight` is not a matrix that is an argument of the program.
    """
    view, layout = weight.view, weight.layout
    if view is None or len(view.dims) != 2:
        return None
    split = () if axis is None else weight.split_over(axis)
    shards = [s for own in (layout.dims if layout else ()) for s in own]
    in_runs = any(s.axis == axis and s.run is not None for s in shards)
    # A module in another place of the model shares the parameter.
    owner, scope = owners.get(view.index, step.scope), step.scope
    is_own = f"{scope}.".startswith(f"{owner}.") or f"{owner}.".startswith(f"{scope}.")
    module = owner if is_own or not scope else scope
    return WeightUse(
        kind, module, view, (1 - inputs) in split, inputs in split, in_runs
    )
