"""
Splits tensors and ops over a mesh: layout arithmetic, sharding rules, plans of
resharding, and local forms of ops.

This package knows types and ops, but no passes and no interpreters.
"""
