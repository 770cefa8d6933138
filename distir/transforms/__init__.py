"""
Rewrites of programs, which passes offer to users.

- `canonicalization`: what exporters emit, in fewer operators; `repeats`: functions for what
  repeats; `patterns`: groups of ops that are one operator;
- `dropout`, `checkpointing`, `sequence_parallel`, `step_settings`: changes of training
  steps; `evaluation`: the forward of one alone; `slicing`: what some results need;
- `partitioning`: annotations become layouts in types; `resharding`: changes of layout
  become collectives; `pipelines`: a program over micro-batches becomes a pipeline;
- `overlap`: communication that starts early and ends late; `bucketing`: several collectives
  in one message;
- `projection`: the program of one device.
"""
