"""
Checks at import that a program computes what its module computes, and the names of the
differences between both that users can accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.errors import DistIRError

CONTROL_FLOW = "control-flow"
PYTHON_RANDOM = "python-random"
CUSTOM_BACKWARD = "custom-backward"
MISMATCH = "mismatch"
ACCEPTED = (CONTROL_FLOW, PYTHON_RANDOM, CUSTOM_BACKWARD, MISMATCH)
"""
The differences between a module and its program that users can accept:

- `control-flow`: Python decides by the values of tensors, or counts its calls; the
  program repeats what Python did for the example inputs;
- `python-random`: Python draws random numbers; the program repeats those of one call;
- `custom-backward`: a `torch.autograd.Function` has a backward that is not the
  derivative of its forward; the program uses the derivative;
- `mismatch`: the program computes something else, or does not update buffers that the
  module updates.
"""


@dataclass(frozen=True)
class Trust:
    """
    The checks of an imported program.

    - `check`: whether the program is compared with the module;
    - `allow`: the names of accepted differences.
    """

    check: bool = True
    allow: frozenset[str] = frozenset()

    @staticmethod
    def of(check: bool, allow: Sequence[str]) -> Trust:
        """
        Returns the checks with the accepted differences `allow`, which the user named.
        Raises DistIRError for an unknown name.
        """
        names = (allow,) if isinstance(allow, str) else tuple(allow)
        for name in names:
            if name not in ACCEPTED:
                raise DistIRError(
                    f"allow: there is nothing called {name!r} that can be accepted; give "
                    f"names among {', '.join(ACCEPTED)}"
                )
        return Trust(check, frozenset(names))


def way_out(name: str) -> str:
    """
    Returns the end of an error message, which tells the user how to accept the
    difference `name`.
    """
    return f'or accept it with allow=("{name}",), --allow {name} of distir import'
