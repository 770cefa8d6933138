"""
Groups of ops that are one op, recognised by what they compute, never by names.

`match` asks about values; `masks` knows of masks, `attention` is written-out attention; `fusing` looks for it in a
whole program.
"""
