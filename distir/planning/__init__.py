"""
Which layout, which stage, which plan: the decisions of DistIR.

- `axes`: layouts one mesh axis after another, as `distribute` chooses them, with costs that
  need no cluster;
- `layouts`: the search behind `search-sharding`, and what it chose as annotations of the IR;
- `stages`: the search behind `search-stages`;
- `grid`: the configurations of `search-grid`, evaluated on all cores;
- `auto`: the controller behind `auto-parallel`, which asks the others;
- `strategies`, `graph`, `bodies`, `likeness`, `function_plan`, `annotate`: what `axes` and `layouts`
  share: what ops can do, the graph of that, for each function, which ops decide alike, what was
  decided, and how it is written to the IR;
- `costs`: what that costs: `unit_costs` without a cluster, `simulated_costs` and
  `micro_batch_costs` on one;
- `overlap`: which communication runs while devices compute;
- `distribution`: what `distribute` does, `zero` what it stores split;
- `annotations`, `requests`, `meshes`: what users and passes ask for;
- `plan`, `result`, `programs`: what searches choose from, what comes of it, for which
  programs; `plan_search`, `found_plan`: what all searches have in common, and the plan that one
  found, in a file and followed again.

The mathematics is in `distir.solver`.
"""
