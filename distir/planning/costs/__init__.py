"""
Cost models: the price of an op and of a collective, for the choice of layouts.

`cost_model` is the interface. `unit` needs no cluster; `simulated` and `micro_batches` are
seconds on one. `rank_links` has the links between the ranks of a pipeline.
"""
