"""
The search of the pass `outline-repeats`, which finds sequences of ops that occur
several times.

The ops of a block are written as a sequence of integers, their *tokens*. Ops with equal
tokens differ at most in the origin of their operands. Layers that a model repeats are
then consecutive tokens with a period. The copies of a layer are called *windows*.

An op without operands (a constant) is not in the sequence. Instead, it is part of the
token of each op that uses it. The position of a constant in the exported program, and
the number of its users, thus do not matter.
"""
