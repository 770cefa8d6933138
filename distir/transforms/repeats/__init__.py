"""
The search behind `outline-repeats`: sequences of operations that occur again and again.

The operations of a block are written as a sequence of integers, one per *token*: equal
tokens stand for operations that differ at most in where their operands come from. A layer
that a model repeats is then a stretch of that sequence with a period, and its copies are
the *windows* of the stretch.

An operation without operands (a constant) has no place of its own in the sequence: it is
part of the token of each of its users. It does not matter where an exporter put it, nor
how many operations share it.
"""
