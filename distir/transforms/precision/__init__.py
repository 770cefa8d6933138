"""
Rewrites programs to other floating-point types.

`retyping` carries types through a program: where operands of several types meet, it casts
them as PyTorch promotes. `conversion` puts a whole program into one type, as
`module.to(dtype)` does; `autocast` casts some of its ops, by PyTorch's lists.
"""
