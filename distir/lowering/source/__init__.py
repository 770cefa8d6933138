"""
Writes a program of one rank as Python classes.

Functions on the same weights become the methods of one class (`classes`), and
successive calls of one function become a loop (`runs`).
"""
