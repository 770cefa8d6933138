"""Graphs as integer programs, and the solvers for them."""
