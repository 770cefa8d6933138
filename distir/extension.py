"""
Support for the ops of other dialects: how DistIR splits, computes, differentiates,
prices and emits an op. The names of this module are public:
docs/reference/public-names.md lists each one with the version since which it is stable.

For an op of one's own, `OpSupport` is a trait of its class:

```python
traits = traits_def(Pure(), OpSupport(rule="i k, j k -> i j", torch="{0} @ {1}.mT"))
```

For an op of another package, `register_op` takes the op's name and the same
`OpSupport`. A package lists the module that calls `register_op` under the entry point
`distir.dialects`. DistIR imports that module when a program first uses the dialect:

```toml
[project.entry-points."distir.dialects"]
tosa = "my_package.tosa_support"
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.ir import Operation, SSAValue

from distir.dialects.registries import Registry, StatedEntries
from distir.errors import DistIRError
from distir.frontends.custom_operators import custom_operator as custom_operator
from distir.gradients.rule import GradientBuilder as GradientBuilder
from distir.gradients.rule import gradient_rule
from distir.interpreters.reference import reference_function
from distir.interpreters.simulator import Cost as Cost
from distir.interpreters.simulator import CostContext as CostContext
from distir.interpreters.simulator import cost_function
from distir.lowering.emitter import Call as TorchCall
from distir.lowering.emitter import torch_emitter
from distir.passes.options import DistIRPass as DistIRPass
from distir.rules import Rule, rule_from_text
from distir.sharding.decompose import decomposition as decompositions
from distir.sharding.local import LocalContext as LocalContext
from distir.sharding.local import local_form as local_forms
from distir.sharding.rule import sharding_rule

__all__ = [
    "Cost",
    "CostContext",
    "DistIRPass",
    "GradientBuilder",
    "LocalContext",
    "OpSupport",
    "TorchCall",
    "custom_operator",
    "register_op",
]


@dataclass(frozen=True, init=False)
class OpSupport(StatedEntries):
    """
    The support for one op. It is a trait of the op's class, or an argument of
    `register_op`. Every argument is optional.

    - `rule`: the sharding rule, as text (`"m k, k n -> m n"`, see
      `distir.rules.rule_from_text`) or as a function from an op to its `Rule`. Without
      a rule every device computes the whole op.
    - `local_form`: makes the ops that compute one device's results; the last of these
      ops has the results. Without a local form, each device runs the same op on its
      parts. Give one if an attribute holds sizes or positions of the whole tensor.
    - `decomposition`: makes new ops that compute the same results and can split the
      factors that the rule lists under `decompose`. It returns None for an op that
      needs no decomposition.
    - `reference`: computes the op on NumPy arrays. It is called with the op and one
      array per operand, and returns an array, or a tuple with one per result. `distir
      check` and `distir.testing.check_op` run it.
    - `gradient`: takes the op, the gradients of its results (None for a result without
      one) and a builder of ops. It returns the gradient of each operand, None for an
      operand without one.
    - `cost`: computes the time of the op on one device, in seconds. Without it, the
      time is the longer of two: the time of the rule's FLOPs at the device's peak, and
      the time of the types' bytes at the memory's bandwidth.
    - `torch`: the Python expression of the result in generated PyTorch programs, as a
      template (`"{0} @ {1}.mT"`, see `TorchCall.write`) or as a function from the call
      to the expression, or to one expression per result.

    Raises DistIRError if the text of a rule is wrong.
    """

    def __init__(
        self,
        *,
        rule: str | Callable[[Any], Rule] | None = None,
        local_form: Callable[[LocalContext], Sequence[Operation]] | None = None,
        decomposition: Callable[[Any], list[Operation] | None] | None = None,
        reference: Callable[..., Any] | None = None,
        gradient: Callable[
            [Any, Sequence[SSAValue | None], GradientBuilder], Sequence[SSAValue | None]
        ]
        | None = None,
        cost: Callable[[CostContext], Cost] | None = None,
        torch: str | Callable[[TorchCall], str | Sequence[str]] | None = None,
    ) -> None:
        given: list[tuple[Registry[Any], Any]] = [
            (sharding_rule, rule_from_text(rule) if isinstance(rule, str) else rule),
            (local_forms, local_form),
            (decompositions, decomposition),
            (reference_function, reference),
            (gradient_rule, gradient),
            (cost_function, cost),
            (torch_emitter, _template(torch) if isinstance(torch, str) else torch),
        ]
        super().__init__(tuple(g for g in given if g[1] is not None))


def _template(text: str) -> Callable[[TorchCall], str]:
    return lambda call: call.write(text)


def register_op(name: str, support: OpSupport) -> None:
    """
    Registers support for the op called `name`, such as `"tosa.matmul"`. The op may
    belong to any package. A later call for the same op adds to an earlier call, and
    replaces the arguments that both calls give. Registered support takes precedence
    over an `OpSupport` trait of the op's class. The op's dialect need not be installed:
    an op in generic form is recognised by its name alone. Raises DistIRError if `name`
    does not begin with a dialect.
    """
    if not all(name.partition(".")):
        raise DistIRError(
            f"register_op: {name!r} is no name of an op; write the dialect before it, as "
            f"in 'tosa.matmul'"
        )
    for registry, entry in support.entries:
        registry(name)(entry)
