"""
What `import distir` gives: the commands of `distir` as functions in Python.

`model_program` is the program that most of them take and give, and how it is shown; the
others are named like the commands. Nothing here is imported before it is asked for.
"""
