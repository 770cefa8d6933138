"""
PyTorch modules that run distributed: `parallelize` and its result.

`compilation` compiles a module to a package. `packages` caches packages and shares them
with all ranks. `placements` expresses layouts as placements of DTensor.
`ParallelModule` is the module that a training script uses.
"""
