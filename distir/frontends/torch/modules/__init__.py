"""
Modules of PyTorch as they are: their inputs and outputs, modes, state and tensors without
values, runs of them, and the lines of Python that a run goes through. Nothing here knows
programs.
"""
