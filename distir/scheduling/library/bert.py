"""
BERT as Megatron splits it: columns, then rows of each block, and the vocabulary; the
fraction `ratio` of the layers is recomputed in the backward.
"""

from distir.scheduling import Columns, Rows, Schedule


def schedule(s: Schedule) -> None:
    """Records the splits over axis "t"."""
    layers = s["**.layer.*"]
    for name in ("query", "key", "value"):
        layers["attention.self"][name].split(Columns("t"))
    layers["attention.output.dense"].split(Rows("t"))
    layers.plan({"intermediate.dense": Columns("t"), "output.dense": Rows("t")})
    s["**.word_embeddings"].param("weight").split(0, "t")
    layers.first(s.knob("ratio", [0.0, 0.25, 0.5, 0.75, 1.0])).recompute("full")
