"""
The rewrite behind `pipeline`. The modules are listed in the order in which the rewrite
uses them.

- `over_time`: types of values that are split or partial over micro-batches;
- `structure`: analyses the program. `kinds` tells which ops run once per micro-batch,
  before all micro-batches, or after them. `hoist` computes values of the whole batch
  from whole inputs;
- `split_calls`: divides the backward pass of layers in two, for zero-bubble schedules;
- `stages`: the stage of each op, forward and backward. `balance` finds stages of equal
  work;
- `assigned_stages`: the stages of arguments and of ops that run after the
  micro-batches;
- `fold`: values, ops and functions for one micro-batch on the mesh of one stage;
- `functions`: the ops of each stage and phase, and the function made from them;
- `division`: the part of the analysis that does not depend on a schedule;
- `values`, `emit`: the calls of these functions in the order of a schedule, with sends;
- `entry`: the receiver of these calls: the entry function in IR, or a simulation;
- `pipeline`: the whole rewrite.
"""
