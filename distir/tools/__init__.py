"""
The command line: `distir`, with one file per command in `commands`, and `distir-opt`.
"""
