"""
Collectives: single ones, several in one message, and those of ragged or flattened
tensors.
"""
