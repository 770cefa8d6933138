"""
PyTorch modules that run distributed: `parallelize` and what it returns.

`compilation` makes the program of a module and its package, `packages` keeps packages and hands them
to all ranks, `placements` says where parts are in the words of DTensor, `ParallelModule`
is the module that a training script works with.
"""
