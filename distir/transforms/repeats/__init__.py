"""
The search of the pass `outline-repeats`, which finds sequences of ops that occur
several times.

The ops of a block are written as a sequence of integers, their *tokens*. Ops with equal
tokens differ at most in the origin of their operands. Layers that a model repeats are
then a stretch of the sequence with a period. The copies of a layer are the *windows* of
the stretch.

An op without operands (a constant) has no place in the sequence. It is part of the
token of each of its users. Its place in the exported program and the number of its
users thus do not matter.
"""
