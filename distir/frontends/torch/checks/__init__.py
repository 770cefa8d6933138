"""
Comparisons of an imported program with its module: `comparison.py` says on which inputs, and
what a difference means.
"""
