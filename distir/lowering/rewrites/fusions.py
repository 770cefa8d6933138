"""
Replaces groups of ONNX ops in the program of one rank, each by one PyTorch call.

Groups that compute an ONNX operator first become this operator
(`distir.transforms.patterns`). A fusion then looks at one op, the last of its group,
and replaces the group by an op of the `torch` dialect. Groups are recognised by their
computation, never by names. The pass is `fuse-operators`.
"""

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.rewriter import Rewriter
from xdsl.traits import is_side_effect_free

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist_attributes import KEPT
from distir.dialects.torch import MessageOp
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.lowering.rewrites.gradients import fuse_convolution_gradients, fuse_look_ups
from distir.lowering.rewrites.messages import fuse_messages
from distir.lowering.rewrites.products import (
    fuse_flattened_linear,
    fuse_linear,
    fuse_multiply_add,
    fuse_transposed_linear,
)
from distir.lowering.rewrites.state_copies import fuse_state_copies
from distir.lowering.rewrites.updates import fuse_updates
from distir.program import functions
from distir.transforms.patterns.identity import drop_identity
from distir.transforms.patterns.raising import Pattern, raise_in, replace_in

# The order matters: an earlier fusion may need ops that a later one would take.
_FUSIONS: tuple[Pattern, ...] = (
    fuse_flattened_linear,
    fuse_linear,
    fuse_transposed_linear,
    fuse_multiply_add,
    fuse_look_ups,
)


def fuse(module: ModuleOp) -> None:
    """Applies all fusions to a per-rank program, and removes unused ops."""
    known = list(functions(module).values())
    replace_in(known, drop_identity)
    raise_in(known)
    for fusion in _FUSIONS:
        replace_in(known, fusion)
    for function in known:
        fuse_convolution_gradients(function)
    # Before the updates, which could come between the collectives of a message.
    fuse_messages(module)
    fuse_state_copies(module)
    fuse_updates(module)
    for function in known:
        _erase_unused(function)


def _erase_unused(function: FuncOp) -> None:
    """
    Erases computations without side effects whose results are unused. Communication
    stays, because other ranks take part in it. Ops that are marked to be kept also
    stay.
    """
    for op in reversed(list(function.body.block.ops)):
        removable = (
            not isinstance(op, CollectiveOp | MessageOp | GatheredOp | OpaqueBase)
            and KEPT not in op.attributes
            and is_side_effect_free(op)
        )
        used = any(result.first_use is not None for result in op.results)
        if removable and op.results and not used:
            Rewriter.erase_op(op)
