"""
A schedule for T5, split as Megatron splits it. In each attention and MLP of the encoder
and the decoder, the first weights are split by columns and the second weight by rows;
the vocabulary is split too. The knob `ratio` is the fraction of blocks of encoder and
decoder that the backward pass recomputes.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    ratio = s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])
    for blocks in (s["encoder.block.*"], s["decoder.block.*"]):
        for name in "qkv":
            blocks[f"layer.*.*Attention.{name}"].split(Columns("t"))
        blocks["layer.*.*Attention.o"].split(Rows("t"))
        blocks["layer.*.DenseReluDense.wi*"].split(Columns("t"))
        blocks["layer.*.DenseReluDense.wo"].split(Rows("t"))
        blocks.first(ratio).recompute("full")
    s["encoder.embed_tokens"].param("weight").split(0, "t")
