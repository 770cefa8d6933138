"""
The commands of `distir`.

A command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`; what
it needs beyond argparse it imports in `run`, so that the command line starts at once.
"""
