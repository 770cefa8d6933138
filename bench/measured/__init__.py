"""
Published measurements, and the programs that predict them, with one file for each kind.

A loader reads one file of measurements and returns `Row`s; `bench/accuracy.py` scores them.
"""
