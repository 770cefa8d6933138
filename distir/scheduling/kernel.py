"""Users' kernels, as scripts declare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, StringAttr, f64
from xdsl.ir import Attribute

from distir.errors import DistIRError
from distir.scheduling.knobs import knob_attribute


def _no_options() -> Mapping[str, int | float | str]:
    return {}


@dataclass(frozen=True)
class Kernel:
    """
    A Python function that replaces groups of ops:

    ```python
    attention = Kernel("mine", "my_kernels:attention", rule="[b,q,h 64], [b,k,h 64], "
                       "[b,k,h 64] -> [b,q,h 64]", keep="q k", gradient="autograd")
    s["h.3.attn"].find(patterns.causal_attention).replace(attention)
    ```

    - `name`: the name of the kernel in the program;
    - `implementation`: the function, as `module:function`. It takes tensors in the
      order of the pattern's arguments, whole tensors or parts of tensors, and returns
      one tensor;
    - `rule`: the sharding rule, which names the factors of every dimension; by default
      it follows from the replaced ops. DistIR proves that the rule holds;
    - `keep`: the factors of `rule` that must stay whole;
    - `gradient`: the source of the gradient. With `reference`, the replaced ops are
      recomputed and differentiated. With `autograd`, PyTorch differentiates the
      function. With `module:function`, that function takes the arguments and the
      gradient of the result, and returns one gradient per argument;
    - `options`: numbers and texts that both functions get as additional keyword
      arguments;
    - `tolerance`: the largest allowed difference from the replaced ops, relative to the
      largest element;
    - `flops`: the number of floating-point operations, if it differs from the number in
      the replaced ops;
    - `workspace`: the bytes of temporary memory. Like `flops`, it is a sum of products
      of factors, such as `4*b*h*q`.
    """

    name: str
    implementation: str
    rule: str = ""
    keep: str = ""
    gradient: str = "reference"
    tolerance: float | None = None
    flops: str = ""
    workspace: str = ""
    options: Mapping[str, int | float | str] = field(default_factory=_no_options)

    def __post_init__(self) -> None:
        if self.keep and not self.rule:
            raise DistIRError(
                f"kernel {self.name!r}: keep={self.keep!r} names factors of a rule; give the "
                f"rule, too"
            )

    def having(self, **options: int | float | str) -> Kernel:
        """
        Returns a copy of the kernel with the given options added or changed:
        `kernels.attention.having(head_size=64)`.
        """
        return replace(self, options={**self.options, **options})

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """Returns the fields that are set, as the properties of `schedule.kernel`."""
        rule = f"{self.rule} keep {self.keep}" if self.keep else self.rule
        texts = {
            "symbol": self.name,
            "implementation": self.implementation,
            "rule": rule,
            "gradient": "" if self.gradient == "reference" else self.gradient,
            "flops": self.flops,
            "workspace": self.workspace,
        }
        found: dict[str, Attribute] = {k: StringAttr(v) for k, v in texts.items() if v}
        if self.options:
            own = {name: knob_attribute(value) for name, value in self.options.items()}
            found["options"] = DictionaryAttr(own)
        if self.tolerance is not None:
            found["tolerance"] = FloatAttr(self.tolerance, f64)
        return found
