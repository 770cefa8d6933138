"""
ALBERT as Megatron splits BERT: columns, then rows of the block that all layers share, and the
vocabulary; `policy` says what the backward computes again of each layer.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over axis "t"."""
    layer = s["**.albert_layers.*"]
    layer["attention"].merge("query", "key", "value", name="qkv")
    layer.plan({"attention.qkv": Columns("t"), "attention.dense": Rows("t")})
    layer.plan({"ffn": Columns("t"), "ffn_output": Rows("t")})
    s["**.word_embeddings"].param("weight").split(0, "t")
    layer.recompute(s.knob("policy", ["none", "full"]))
