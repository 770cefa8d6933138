"""Checkpoints: tensors in boxes, files and their metadata, and the lock of a folder."""
