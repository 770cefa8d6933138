"""
The ops of the `train` dialect. Each file has one family of ops, and lists it in `OPS`.
"""
