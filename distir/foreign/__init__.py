"""
Support for dialects of xDSL that do not belong to DistIR: `linalg`, `tensor`, `arith`
and `math`, on tensors. One module per dialect registers the sharding rules of its ops,
their local forms, and their evaluation on NumPy arrays.

A module is imported when a program first uses its dialect
(`distir.dialects.registries.load_support`). Other packages name such modules under the
entry point `distir.dialects`.

- `elementwise`: the sharding rule and the evaluation of elementwise ops;
- `structured`: loops over tensors, as in `linalg`: indexing maps and a body.
"""
