"""
Files that are written as a whole or not at all, installed packages, garbage collection: what
DistIR needs of the machine and of Python. Nothing here knows programs.
"""
