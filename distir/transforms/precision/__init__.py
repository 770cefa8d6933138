"""
Programs in other types of floats.

`retyping` carries types through a program: where operands of several types meet it casts,
as PyTorch promotes. `conversion` puts all of a program into one type, as `module.to(dtype)`
does, `autocast` some of its ops, by PyTorch's lists.
"""
