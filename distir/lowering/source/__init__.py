"""
How a program of one rank becomes classes of Python: what repeats becomes a function
(`outline`), values that travel together one value (`bundles`), functions on the same weights
the methods of one class (`classes`), calls in a row a loop (`runs`).
"""
