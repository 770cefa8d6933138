"""
Compares an imported program with its module. `comparison.py` chooses the inputs and
judges the differences.
"""
