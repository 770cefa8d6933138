"""
PyTorch modules that run distributed: `parallelize` and its result.

`compilation` makes the program of a module and its package. `packages` caches packages
and shares them with all ranks. `placements` expresses layouts as placements of DTensor.
`ParallelModule` is the module that a training script works with.
"""
