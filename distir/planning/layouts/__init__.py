"""
The search for layouts on several mesh axes, behind `search-sharding`.

The sharding rule of each op offers strategies (`strategies`, `axes.runs`); a `CostModel`
says what they and the changes of layout between them cost. `GraphBuilder` makes one node
per op, argument and value with several uses, and edges along the values; repeated calls
share their nodes (`tied_ops`).

`search` chooses the mesh axes one after the other or together; `fitted_plan` and `searched`
add micro-batches and stages; `fitted` repeats the search until the simulator agrees that
the program fits into memory.
"""
