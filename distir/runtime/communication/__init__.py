"""
Collectives among processes: single collectives, several in one message, and collectives
of ragged or flattened tensors.
"""
