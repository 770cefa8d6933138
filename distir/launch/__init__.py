"""Processes that run a package: their start, their results, their times and their memory."""
