"""
How `pipeline` works, in the order in which it works.

- `structure`: which ops of the program run once per micro-batch, which before and after;
- `stages`: which stage each of them runs on, forward and backward;
- `fold`: what a value or an op is for one micro-batch on one stage's mesh;
- `functions`: a function for each stage and phase;
- `emit`: the program that calls them in the order of a schedule, with sends.
"""
