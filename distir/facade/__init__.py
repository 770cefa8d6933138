"""
The names that `import distir` provides: the commands of `distir` as functions in
Python.

`model_program` is the program that most of them take and return, and its display; the other
modules are named like the commands. Nothing here is imported before it is used.
"""
