"""
Rewrites of programs, which passes offer to users.

- `canonicalization`: simplifies the output of model exporters;
- `repeats`: outlines repeated ops into functions;
- `patterns`: replaces groups of ops by one operator;
- `dropout`, `memory`, `precision`, `sequences`, `step_settings`: change training steps;
- `expert_shards`: divides experts into shards;
- `uneven_sizes`: pads and flattens tensors so that devices can split them evenly;
- `slicing`: extracts the ops that given results need;
- `partitioning`: turns annotations into layouts in types;
- `resharding`: turns changes of layout into collectives;
- `pipelines`: turns a program over micro-batches into a pipeline;
- `overlap`: lets communication run at the same time as computation;
- `bucketing`: sends several collectives as one message;
- `projection`: extracts the program of one device.
"""
