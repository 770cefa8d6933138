"""
The search for the layouts of all mesh axes.

For each op the sharding rule offers strategies (`strategies`, `axes.runs`); what they cost and
what changes of layout cost between them, `CostModel` says. `GraphBuilder` makes one node per
op, argument and value that several ops use, and edges along the values; repeated calls
share their nodes (`likeness`).

It runs over mesh axes one after the other or together (`search`), for a program
on its own or with micro-batches and stages (`over_time`, `searched`), inside a limit of
memory that the simulator agrees to (`fitted`).
"""
