"""
Which layout, which stage, which plan: the decisions of DistIR.

- `layouts`: the search behind `search-sharding`, and what it chose as annotations of the IR;
- `stages`: the search behind `search-stages`;
- `grid`: the configurations of `search-grid`, evaluated on all cores;
- `auto`: the controller behind `auto-parallel`, which asks the others;
- `axes`: layouts of one mesh axis as a graph of strategies with costs that need no cluster.
  It is to replace the dynamic program in `distir.sharding.choice`, and is compared with it
  by `test/planning`; the passes do not use it yet;
- `simulated_costs`, `micro_batch_costs`: what ops and changes of layout cost on a cluster;
- `annotations`, `requests`: what users and passes ask for.

The mathematics is in `distir.solver`.
"""
