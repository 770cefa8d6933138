"""
Facts about PyTorch modules, independent of programs: inputs and outputs, modes, state,
tensors without values, runs of modules, and the lines of Python code that a run
executes.
"""
