"""Sequences and tokens over devices: context and sequence parallelism, ring attention."""
