"""
The rewrite behind `pipeline`, module by module in the order in which it proceeds.

- `over_time`: types of values that are split or partial over the micro-batches;
- `structure`: the program taken apart: `kinds` says which ops run once per micro-batch,
  which before and which after; `hoist` computes from whole inputs what micro-batches need
  to know of the whole batch;
- `split_calls`: the backward of layers in two parts, for zero-bubble schedules;
- `stages`: the stage of each op, forward (`balance`: by work) and backward;
- `homes`: where arguments live, and where ops run after the micro-batches;
- `fold`: what a value, an op or a function is for one micro-batch on one stage's mesh;
  `part` takes a micro-batch's part of a value that is the same for all;
- `groups`, `functions`: the ops of each stage and phase, and the function made of them;
- `values`, `emit`: the calls of these functions in the order of a schedule, with sends;
- `entry`, `body`: what receives these calls: the entry function in IR, or a simulation;
- `division`: all that is known before a schedule, and depends on the number of stages
  alone.
"""
