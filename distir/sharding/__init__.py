"""
How tensors and ops are split over a mesh: layout arithmetic, sharding rules, plans of
resharding, and what an op becomes on one device.

This package knows types and ops, but no pass and no interpreter.
"""
