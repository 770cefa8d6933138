"""
Cost models: the prices of ops and of collectives, for the choice of layouts.

`cost_model` has the interface. `unit` needs no cluster. `simulated` and `micro_batches`
compute seconds on a cluster. `rank_links` has the links between pipeline ranks.
"""
