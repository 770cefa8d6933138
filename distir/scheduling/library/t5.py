"""
T5 as Megatron splits it: columns, then rows of each attention and MLP of both stacks, and the
vocabulary; `ratio` of the blocks of each stack are computed again in the backward.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over axis "t"."""
    ratio = s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])
    for blocks in (s["encoder.block.*"], s["decoder.block.*"]):
        for name in "qkv":
            blocks[f"layer.*.*Attention.{name}"].split(Columns("t"))
        blocks["layer.*.*Attention.o"].split(Rows("t"))
        blocks["layer.*.DenseReluDense.wi*"].split(Columns("t"))
        blocks["layer.*.DenseReluDense.wo"].split(Rows("t"))
        blocks.first(ratio).recompute("full")
    s["encoder.embed_tokens"].param("weight").split(0, "t")
