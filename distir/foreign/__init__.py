"""
Dialects that DistIR does not own but distributes: `linalg`, `tensor`, `arith` and `math`
of xDSL, on tensors. One module per dialect registers what DistIR wants to know of its
ops: sharding rules, local forms and their meaning on NumPy arrays.

A module is imported when a program first uses its dialect
(`distir.dialects.registries.load_support`). Other packages name theirs under the entry
point `distir.dialects`.

- `elementwise`: the rule and the meaning of ops that work on each element by itself;
- `structured`: loops over tensors, as `linalg` writes them: indexing maps and a body.
"""
