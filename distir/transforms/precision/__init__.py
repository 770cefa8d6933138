"""
Changes the floating-point types of programs. `retyping` propagates types through a
program, and casts operands of several types as PyTorch promotes them. Its function
`convert` gives a whole program one type, as `module.to(dtype)` does. Its function
`autocast` casts the operands of the ops in PyTorch's lists. `float8` computes matrix
products in 8-bit floats.
"""
