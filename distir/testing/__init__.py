"""
Checks of ops: whether the sharding rule, the local form (the ops that compute one
device's results), the gradient and the PyTorch expression of an op agree with its
reference. The names of this module are public: docs/reference/public-names.md lists
each one with the version since which it is stable.

- `check`: `check_op`, which runs all checks of one op;
- `splits`: the splits that a sharding rule allows on a small mesh;
- `runs`: one op, whole and on several devices;
- `derivatives`: gradients and central differences;
- `torch_calls`: the PyTorch expression of one op;
- `errors`: the error that the checks raise.
"""

from distir.testing.check import OpReport, check_op
from distir.testing.errors import OpCheckError

__all__ = ["OpCheckError", "OpReport", "check_op"]
