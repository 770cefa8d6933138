"""
Sharding rules of opaque modules, as text. The text

    [b@e, s, 64], [x@e, 64, f] -> [b@e, s, 64] keep f

is the rule of a kernel (`distir.sharding.kernel_rule`) in which a dimension may name
mesh axes. A module with such axes communicates over them on its own. Such an axis
splits only the dimensions at which the rule names the axis. All other axes may split
the factors that the rule does not keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from distir.errors import DistIRError
from distir.sharding.kernel_rule import KernelRule, parse_rule
from distir.sharding.rule import AxisDims, Rule

_TENSOR = re.compile(r"\[([^\[\]]*)\]")
_AXES = re.compile(r"@\s*([A-Za-z_]\w*)", re.ASCII)

Placed = tuple[tuple[str, int], ...]
"""The axes that split a tensor by declaration, each with the dimension it splits."""


@dataclass(frozen=True)
class OpaqueRule:
    """
    The sharding rule of an opaque module.

    - `factors`: the rule for the mesh axes over which the module does not communicate;
    - `operands`, `results`: for each tensor, pairs of a mesh axis over which the module
      communicates and the dimension of the tensor that the axis splits.
    """

    factors: KernelRule
    operands: tuple[Placed, ...]
    results: tuple[Placed, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes over which the module communicates on its own."""
        tensors = (*self.operands, *self.results)
        return tuple(dict.fromkeys(axis for own in tensors for axis, _ in own))

    def __str__(self) -> str:
        plain, _, kept = str(self.factors).partition(" keep ")
        before, after = plain.split(" -> ")
        sides = (
            _with_axes(text, own)
            for text, own in ((before, self.operands), (after, self.results))
        )
        return " -> ".join(sides) + (f" keep {kept}" if kept else "")

    def rule(
        self,
        operands: Sequence[Sequence[int]],
        results: Sequence[Sequence[int]],
        flops: str = "",
        *,
        is_gradient: bool = False,
    ) -> Rule:
        """
        Returns the rule for tensors of the shapes `operands` and `results`. `flops` is
        the number of operations, as a sum of products of factors. With `is_gradient`, a
        result that an axis of the module does not split is a sum over the axis. Raises
        DistIRError if the shapes do not fit.
        """
        found = self.factors.rule(operands, results, flops)
        by_itself = tuple(
            AxisDims(
                axis,
                tuple(dict(own).get(axis) for own in self.operands),
                tuple(dict(own).get(axis) for own in self.results),
                frozenset(
                    i
                    for i, own in enumerate(self.results)
                    if is_gradient and axis not in dict(own)
                ),
            )
            for axis in self.axes
        )
        return found.with_axes(by_itself)

    def gradient(self, given: Iterable[int], wanted: Iterable[int]) -> OpaqueRule:
        """
        Returns the rule of the gradient. Its operands are the gradients of the results
        `given`, followed by the operands of the module; its results are the gradients
        of the operands `wanted`. If an axis over which the module communicates does not
        split an operand, the gradient of this operand is a sum over the axis.
        """
        given, wanted = tuple(given), tuple(wanted)
        factors = KernelRule(
            (*(self.factors.results[i] for i in given), *self.factors.operands),
            tuple(self.factors.operands[i] for i in wanted),
            self.factors.kept,
        )
        return OpaqueRule(
            factors,
            (*(self.results[i] for i in given), *self.operands),
            tuple(self.operands[i] for i in wanted),
        )


def _with_axes(text: str, placed: Sequence[Placed]) -> str:
    tensors = _TENSOR.findall(text)
    shown: list[str] = []
    for tensor, own in zip(tensors, placed, strict=True):
        dims = tensor.split(", ") if tensor else []
        for axis, dim in own:
            dims[dim] += f"@{axis}"
        shown.append(f"[{', '.join(dims)}]")
    return ", ".join(shown)


@lru_cache(maxsize=256)
def parse_opaque_rule(text: str) -> OpaqueRule:
    """
    Parses the text of the sharding rule of an opaque module. Raises DistIRError if it
    is malformed.
    """
    factors = parse_rule(_AXES.sub("", text))
    sides = text.partition(" keep ")[0].split("->")
    operands, results = (
        tuple(_placed(match.group(1), text) for match in _TENSOR.finditer(side))
        for side in sides
    )
    return OpaqueRule(factors, operands, results)


def _placed(tensor: str, rule: str) -> Placed:
    found: dict[str, int] = {}
    for dim, text in enumerate(tensor.split(",") if tensor.strip() else []):
        for axis in _AXES.findall(text):
            if axis in found:
                raise DistIRError(
                    f"rule {rule!r}: axis {axis!r} splits two dimensions of [{tensor}]; an "
                    f"axis splits one dimension of a tensor"
                )
            found[axis] = dim
    return tuple(found.items())


_GROUP = re.compile(r"\(([^()]*)\)")


def in_brackets(text: str) -> str:
    """
    Returns a rule in the notation with brackets. In the notation without brackets,
    commas separate tensors, spaces separate dimensions, and parentheses enclose the
    factors of one dimension: `b s (h 64), s -> b s` becomes `[b, s, h 64], [s] -> [b,
    s]`.
    """
    if "[" in text:
        return text.strip()
    body, keep, kept = text.partition(" keep ")
    sides = (
        ", ".join(f"[{_dims(tensor)}]" for tensor in side.split(","))
        for side in body.split("->")
    )
    return " -> ".join(sides) + (f"{keep}{kept}" if keep else "")


def _dims(tensor: str) -> str:
    grouped = _GROUP.sub(lambda m: "\0".join(m.group(1).split()), tensor)
    joined = re.sub(r"\s*@\s*", "@", grouped)
    return ", ".join(part.replace("\0", " ") for part in joined.split())
