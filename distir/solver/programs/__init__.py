"""Graphs as integer programs, and the solvers that run them."""
