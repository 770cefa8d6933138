"""
Which layout, which stage, which plan: the decisions of DistIR.

- `axes`: layouts one mesh axis after another, as `distribute` chooses them, with costs that
  need no cluster;
- `layouts`: the search behind `search-sharding`, and what it chose as annotations of the IR;
- `stages`: the search behind `search-stages`;
- `grid`: the configurations of `search-grid`, evaluated on all cores;
- `auto`: the controller behind `auto-parallel`, which asks the others;
- `simulated_costs`, `micro_batch_costs`: what ops and changes of layout cost on a cluster;
- `annotations`, `requests`: what users and passes ask for.

The mathematics is in `distir.solver`.
"""
