"""
Checkpoints: their files, metadata and parts of tensors, and the lock on their folder.
"""
