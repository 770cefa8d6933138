"""Padding of sequences, so that a module needs programs for a few lengths only."""
