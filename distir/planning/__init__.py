"""
The decisions of DistIR: which layouts, which pipeline stages, which plan.

- `axes`: chooses layouts one mesh axis after another, as `distribute` does, with costs that
  need no cluster;
- `layouts`: the search behind `search-sharding`, which weighs several mesh axes together;
- `stages`: the search behind `search-stages`;
- `grid`: evaluates the plans of `search-grid` on all cores;
- `auto`: the search behind `auto-parallel`, which combines the others;
- `strategies`, `graph`, `bodies`, `tied_ops`, `function_plan`, `annotate`: what `axes` and
  `layouts` share: the strategies of an op, the graph of strategies of each function, which
  ops share a decision, the decisions, and how these are written to the IR;
- `costs`: the interface of cost models; `unit_costs` needs no cluster, `simulated_costs`
  and `micro_batch_costs` are seconds on one;
- `overlap`: which communication runs while devices compute;
- `distribution`: the pipeline of steps behind `distribute`; `zero`: what it stores split;
- `annotations`, `requests`, `meshes`: what users and passes ask for;
- `plan`, `result`, `programs`: the plans that searches choose from, what a plan achieves,
  and the programs that are searched for; `plan_search`: what all searches have in common;
  `saved_plan`: a plan that a search found, saved to a file and followed again.

The mathematics is in `distir.solver`.
"""
