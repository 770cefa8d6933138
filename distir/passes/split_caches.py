"""`split-caches`: splits caches of inference along positions."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.caches import split_positions


@dataclass(frozen=True)
class SplitCachesPass(DistIRPass):
    """
    Splits the positions of caches of keys and values over the mesh axes `axes`:
    annotates the caches, and prepares the program.

    A cache is an argument with the role `cache` to which `onnx.TensorScatter` writes
    tokens along dimension 2. The write becomes `train.write_slots`, with which each
    device writes the tokens that belong to its slots. Attention to all keys of such a
    cache becomes `train.split_attention`, with which each device attends to the keys
    that it has, and a sum of the results, weighed by the softmax of their logarithms of
    sums of exponentials. `propagate-sharding` derives the layouts of all other values,
    and the communication follows: an all-gather of the logarithms and an all-reduce of
    the results.

    - `axes`: one or more axes of a mesh, separated by commas.

    Caches in pages and states of state-space layers stay whole. A step of one token
    without another cache is refused.
    """

    name = "split-caches"

    axes: tuple[str, ...] = ("c",)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_positions(op, self.axes)
