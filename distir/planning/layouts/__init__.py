"""
The search for layouts on several mesh axes, which the pass `search-sharding` runs.

The sharding rule of each op offers strategies (`strategies`, `axes.runs`). A
`CostModel` prices the strategies and the reshards between them. `GraphBuilder` makes
one node per op, per argument and per value with several uses, and one edge per use of a
value. Repeated calls share their nodes (`tied_ops`).

`search` chooses the layouts for all mesh axes together or for one axis after the other.
`fitted_plan` and `searched` add micro-batches and pipeline stages. `fitted` repeats the
search until the program fits into memory in the simulator.
"""
