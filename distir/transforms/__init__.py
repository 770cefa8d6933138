"""
Rewrites of programs, which passes give to users:

- `canonicalization`: what exporters emit, in fewer operators; `repeats`: functions for what
  repeats;
- `dropout`, `checkpointing`, `sequence_parallel`: of training steps;
- `partitioning`: annotations become layouts in types; `resharding`: collectives for changes
  of layout; `pipelines`: a program over time becomes a pipeline;
- `overlap`: communication that starts early and ends late;
- `projection`: the program of one device.
"""
