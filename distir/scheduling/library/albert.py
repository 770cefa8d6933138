"""
A schedule for ALBERT, split as Megatron splits BERT. In the block that all layers
share, the first weights of attention and MLP are split by columns and the second
weights by rows; the vocabulary is split too. The knob `policy` is the checkpoint policy
of the layers.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over mesh axis "t", and the recomputation."""
    layer = s["**.albert_layers.*"]
    layer["attention"].merge("query", "key", "value", name="qkv")
    layer.plan({"attention.qkv": Columns("t"), "attention.dense": Rows("t")})
    layer.plan({"ffn": Columns("t"), "ffn_output": Rows("t")})
    s["**.word_embeddings"].param("weight").split(0, "t")
    layer.recompute(s.knob("policy", ["none", "full"]))
