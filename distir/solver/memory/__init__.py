"""
Solving under a memory limit: prices for memory, the smallest peak, and the problem
without the limit.
"""
