"""
The pages of the documentation's site that no file holds: made by `make docs` from the
docstrings of passes, dialects and functions, the help of commands, and runs of small programs.
"""
