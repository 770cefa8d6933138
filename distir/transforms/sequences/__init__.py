"""
Divides sequences over devices: context parallelism, sequence parallelism, ring
attention.
"""
