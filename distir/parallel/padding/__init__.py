"""Padding of sequences to a few lengths."""
