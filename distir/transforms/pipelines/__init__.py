"""
How `pipeline` works, in the order in which it works.

- `over_time`: types of values that are split or partial over the micro-batches;
- `structure`: the program taken apart: `kinds` says which ops run once per micro-batch,
  which before and which after; `hoist` computes from whole inputs what micro-batches need
  of the whole batch;
- `split_calls`: the backward of layers in two parts, for zero-bubble schedules;
- `stages`: which stage each op runs on, forward (`balance`: by work) and backward;
- `homes`: where arguments live, and where ops run after the micro-batches;
- `fold`: what a value, an op or a function is for one micro-batch on one stage's mesh;
  `part` takes a micro-batch's part of what is the same for all;
- `groups`, `functions`: the ops of each stage and phase, and a function of them;
- `values`, `emit`: the steps that call them in the order of a schedule, with sends;
- `entry`: who takes these steps: the function that they make up;
- `division`: all that is known before, and depends on the number of stages alone.
"""
