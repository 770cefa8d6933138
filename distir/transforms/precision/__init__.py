"""
Rewrites programs to other floating-point types. `retyping` propagates types through a
program, and casts operands of several types as PyTorch promotes them. Its function
`convert` gives a whole program one type, as `module.to(dtype)` does. Its function
`autocast` casts the operands of some ops, by PyTorch's lists. `float8` computes matrix
products in 8-bit floats.
"""
