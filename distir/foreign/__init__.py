"""
Support for dialects of xDSL that do not belong to DistIR: `linalg`, `tensor`, `arith`
and `math`, on tensors. One module per dialect registers the sharding rules of its ops,
the ops that compute one device's part of a result, and the evaluation of ops on NumPy
arrays.

DistIR imports such a module when a program first uses the module's dialect
(`distir.dialects.registries.load_support`). Other packages name their modules under the
entry point `distir.dialects`.

- `elementwise`: the sharding rule and the evaluation of elementwise ops;
- `structured`: loops over tensors, as in `linalg`: indexing maps and a body.
"""
