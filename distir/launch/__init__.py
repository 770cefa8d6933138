"""Processes that run a package: their start, results, times and memory."""
