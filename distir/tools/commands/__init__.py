"""
The commands of `distir`. Each command is a module with `add_arguments(parser)` and
`run(arguments)`, which returns the exit code. It imports everything except argparse in
`run`, so that the command line starts at once.
"""
