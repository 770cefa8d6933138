"""
Writes a program of one rank as Python classes.

What repeats becomes a function (`outline`), values that travel together become one value
(`bundles`), functions on the same weights become the methods of one class (`classes`),
calls in a row become a loop (`runs`).
"""
