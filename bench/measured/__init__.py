"""
Published measurements, and the programs that predict them: one file for each kind.

A loader reads one file of measurements and gives `Row`s; `bench/accuracy.py` scores them.
"""
