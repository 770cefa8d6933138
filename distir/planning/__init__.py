"""
The decisions of DistIR: layouts of tensors, pipeline stages, and whole plans.

- `axes`: chooses layouts one mesh axis after another, for `distribute`, with costs that
  need no cluster;
- `layouts`: the search behind `search-sharding`, which weighs several mesh axes
  together;
- `stages`: the search behind `search-stages`;
- `grid`: evaluates the plans of `search-grid` on all cores;
- `auto`: the search behind `auto-parallel`, which combines `layouts`, `stages` and
  `grid`;
- `graph`: the choices that `axes` and `layouts` share: the strategies of an op, the
  graph of each function, the decisions, and the code that writes them to the IR;
- `costs`: cost models, with and without a cluster;
- `distribution`: the steps behind `distribute`, in order;
- `plans`: the plans that searches choose from, their results, and saved plans;
- `annotations`, `requests`, `modules`, `expectations`: requests of users and passes.

The mathematics is in `distir.solver`.
"""
