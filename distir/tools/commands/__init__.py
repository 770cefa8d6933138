"""
The commands of `distir`. Each command is a module with the functions
`add_arguments(parser)` and `run(arguments)`; `run` returns the exit code. Apart from
argparse, such a module imports everything inside of `run`, so that the command line
starts at once.
"""
