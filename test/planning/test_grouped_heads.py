"""Query heads that share key heads, over more devices than there are key heads."""

from __future__ import annotations

from support.pipelines import assert_same
from xdsl.context import Context

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.frontends.models.llama import build_llama
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function

BATCH, LENGTH, WIDTH, HEADS, KEY_HEADS = 4, 16, 64, 8, 2


def test_the_output_matrix_is_split_as_the_heads_are() -> None:
    """
    Each of four devices has a query head of each group, so that its columns of the output
    matrix are two runs: attention's result is not gathered, and the matrix is stored in parts.
    """
    module = build_llama(
        1, WIDTH, HEADS, 64, BATCH, LENGTH, kv_heads=KEY_HEADS, ffn=4 * WIDTH
    )
    DifferentiatePass().apply(Context(), module)
    program = assert_same(module, 1e-3, t=4)
    function = entry_function(program)
    names = argument_names(function)
    layout = layout_of(
        function.args[names.index("model.layers.0.self_attn.o_proj.weight")]
    )
    assert layout is not None
    assert [(s.axis, s.run) for s in layout.dim(1)] == [("t", WIDTH // HEADS)]
    gathered = [
        shape_of(o.result) for o in program.walk() if isinstance(o, AllGatherOp)
    ]
    assert (BATCH, LENGTH, WIDTH) not in gathered
    assert (BATCH, HEADS, LENGTH, WIDTH // HEADS) not in gathered
