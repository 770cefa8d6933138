"""
How tensors and ops split over a mesh: layout arithmetic, sharding rules, and what an op
becomes on one device. Knows types and ops, but no pass and no interpreter.
"""
