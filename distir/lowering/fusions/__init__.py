"""
Groups of ONNX ops that are one PyTorch call, on the program of one rank.

A fusion looks at one op, the last of its group, and puts a `torch.call` in its place.
Groups are recognised by what they compute, never by names. `fuse-operators` is the pass.
"""

from collections.abc import Callable

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.rewriter import Rewriter
from xdsl.traits import is_side_effect_free

from distir.dialects.collective import CollectiveOp
from distir.dialects.onnx import OnnxOp
from distir.lowering.fusions.activation import fuse_gelu, fuse_silu
from distir.lowering.fusions.identity import drop_identity
from distir.lowering.fusions.linear import (
    fuse_flattened_linear,
    fuse_linear,
    fuse_transposed_linear,
)
from distir.lowering.fusions.normalization import fuse_rms_norm
from distir.lowering.fusions.updates import fuse_updates
from distir.program import KEPT, functions
from distir.transforms.patterns.attention import AttentionFuser

Fusion = Callable[[OnnxOp], bool]

# In this order: what a later one looks for may be part of what an earlier one takes.
_FUSIONS: tuple[Fusion, ...] = (
    drop_identity,
    fuse_rms_norm,
    fuse_gelu,
    fuse_silu,
    fuse_flattened_linear,
    fuse_linear,
    fuse_transposed_linear,
)


def fuse(module: ModuleOp) -> None:
    """Applies every fusion to a per-rank program, and removes what nothing uses then."""
    for fusion in (AttentionFuser().fuse, *_FUSIONS):
        for function in functions(module).values():
            for op in list(function.body.block.ops):
                if isinstance(op, OnnxOp) and _is_used(op):
                    fusion(op)
    fuse_updates(module)
    for function in functions(module).values():
        _erase_unused(function)


def _erase_unused(function: FuncOp) -> None:
    """
    Erases pure computations that nothing uses. Communication stays, as other ranks take
    part in it, and what is to be kept.
    """
    for op in reversed(list(function.body.block.ops)):
        removable = (
            not isinstance(op, CollectiveOp)
            and KEPT not in op.attributes
            and is_side_effect_free(op)
        )
        if removable and op.results and not _is_used(op):
            Rewriter.erase_op(op)


def _is_used(op: Operation) -> bool:
    return any(result.first_use is not None for result in op.results)
