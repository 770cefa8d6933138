"""
Rewrites programs to other floating-point types. `retyping` carries types through a
program. Operands of several types are cast as PyTorch promotes them. `convert` there
puts a whole program into one type, as `module.to(dtype)` does. `autocast` casts the
operands of some ops, by PyTorch's lists. `float8` computes matrix products in 8-bit
floats.
"""
