"""Solving under a memory limit: multipliers, the smallest peak, and relaxations."""
