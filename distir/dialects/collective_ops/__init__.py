"""
The ops of the `collective` dialect: their common base, and one file per kind of op.
"""
