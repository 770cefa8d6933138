"""
Sharding rules of users' kernels, as text. The text

    [b,h,q,d], [b,h,k,d], [b,h,k,e] -> [b,h,q,e] keep q k d e

lists the dimensions of every operand and result. A dimension is a factor, several
factors from major to minor (`[b, q, h 64]`), or `1`, which has no factor. Numbers, and
factors after `keep`, stay whole. Splitting a factor splits the operands and results
that have the factor; results that lack it become terms of a sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from distir.errors import DistIRError
from distir.sharding.rule import Dim, Factor, Kind, Rule

NamedDim = tuple[str | int, ...]
"""
The names of a dimension's factors, major to minor. A number is a factor of that size
that stays whole.
"""

NamedDims = tuple[NamedDim, ...]

_TENSOR = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class KernelRule:
    """
    The sharding rule of a kernel with named factors: the dimensions of operands and
    results, and the factors that stay whole.
    """

    operands: tuple[NamedDims, ...]
    results: tuple[NamedDims, ...]
    kept: frozenset[str] = frozenset()

    def __str__(self) -> str:
        sides = (", ".join(map(_shown, side)) for side in (self.operands, self.results))
        kept = [name for name in self.names if name in self.kept]
        return " -> ".join(sides) + (f" keep {' '.join(kept)}" if kept else "")

    @property
    def names(self) -> list[str]:
        """Returns the names of all factors, in the order of the text."""
        tensors = (*self.operands, *self.results)
        found = [n for dims in tensors for dim in dims for n in dim]
        return list(dict.fromkeys(n for n in found if isinstance(n, str)))

    @property
    def split(self) -> list[str]:
        """Returns the names of the factors that may be split."""
        return [name for name in self.names if name not in self.kept]

    def sizes(
        self,
        operands: Sequence[Sequence[int]],
        results: Sequence[Sequence[int]],
        known: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """
        Returns the sizes of the factors for operands and results of the given shapes;
        `known` holds sizes that are already fixed. Raises DistIRError if the shapes do
        not fit the rule, or do not determine all sizes.
        """
        if (len(operands), len(results)) != (len(self.operands), len(self.results)):
            raise DistIRError(
                f"rule {self} is for {len(self.operands)} operands and "
                f"{len(self.results)} results, not for {len(operands)} and {len(results)}"
            )
        pairs: list[tuple[NamedDim, int]] = []
        tensors = (*self.operands, *self.results)
        for dims, shape in zip(tensors, (*operands, *results), strict=True):
            if len(dims) != len(shape):
                raise DistIRError(
                    f"rule {self} has {_shown(dims)} for a tensor of shape {list(shape)}"
                )
            pairs += zip(dims, shape, strict=True)
        found = dict(known or {})
        while True:
            left: list[tuple[NamedDim, int]] = []
            for dim, size in pairs:
                product = prod(
                    n if isinstance(n, int) else found.get(n, 1) for n in dim
                )
                names = [n for n in dim if isinstance(n, str) and n not in found]
                if len(names) > 1:
                    left.append((dim, size))
                elif size % max(product, 1) or (not names and size != product):
                    raise DistIRError(
                        f"rule {self}: a dimension of {size} elements cannot be "
                        f"[{' '.join(map(str, dim))}]"
                        + (f" with {_sizes(found)}" if found else "")
                    )
                elif names:
                    found[names[0]] = size // max(product, 1)
            if not left:
                return {name: found[name] for name in self.names}
            if len(left) == len(pairs):
                dim = " ".join(map(str, left[0][0]))
                raise DistIRError(
                    f"rule {self}: the shapes do not tell the sizes of the factors of "
                    f"[{dim}]; write the size of one that stays whole as a number"
                )
            pairs = left

    @property
    def of_operands(self) -> KernelRule:
        """Returns the rule without its results."""
        names = {n for dims in self.operands for dim in dims for n in dim}
        return KernelRule(self.operands, (), self.kept & names)

    @staticmethod
    def shape(dims: NamedDims, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape of a tensor, given the sizes of its factors by name."""
        return tuple(
            prod(part if isinstance(part, int) else sizes[part] for part in dim)
            for dim in dims
        )

    def rule(
        self,
        operands: Sequence[Sequence[int]],
        results: Sequence[Sequence[int]],
        flops: str = "",
    ) -> Rule:
        """
        Returns the rule with factors as indices, for operands and results of the given
        shapes. `flops` is the text of the number of operations. Raises DistIRError if
        the shapes do not fit.
        """
        sizes = self.sizes(operands, results)
        names = self.names
        number = {name: i for i, name in enumerate(names)}
        factors = [Factor(sizes[n], self._kind(n)) for n in names]

        def numbered(tensors: Iterable[NamedDims]) -> tuple[tuple[Dim, ...], ...]:
            out: list[tuple[Dim, ...]] = []
            for dims in tensors:
                mine: list[Dim] = []
                for dim in dims:
                    own: list[int] = []
                    for part in dim:
                        if isinstance(part, str):
                            own.append(number[part])
                        else:
                            own.append(len(factors))
                            factors.append(Factor(part, "replicate"))
                    mine.append(tuple(own))
                out.append(tuple(mine))
            return tuple(out)

        inputs, outputs = numbered(self.operands), numbered(self.results)
        partial: dict[int, frozenset[int]] = {}
        for name, i in number.items():
            lacking = frozenset(
                r for r, dims in enumerate(self.results) if not _has(dims, name)
            )
            if lacking and factors[i].kind == "parallel":
                partial[i] = lacking
        return Rule(
            factors=tuple(factors),
            operands=inputs,
            results=outputs,
            partial_results=partial,
            flops=evaluated(flops, sizes) if flops else 0,
        )

    def _kind(self, name: str) -> Kind:
        if name in self.kept:
            return "replicate"
        return (
            "parallel"
            if any(_has(dims, name) for dims in self.results)
            else "reduction"
        )

    def keeping(self, names: Iterable[str]) -> KernelRule:
        """
        Returns the rule with the factors `names` kept whole, in addition to the factors
        already kept.
        """
        return KernelRule(self.operands, self.results, self.kept | frozenset(names))


def _has(dims: NamedDims, name: str) -> bool:
    return any(name in dim for dim in dims)


def _shown(dims: NamedDims) -> str:
    return f"[{', '.join(' '.join(map(str, dim)) or '1' for dim in dims)}]"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


@lru_cache(maxsize=256)
def parse_rule(text: str) -> KernelRule:
    """
    Parses the text of a kernel's sharding rule. Raises DistIRError if it is malformed.
    """
    body, keep, kept = text.partition(" keep ")
    sides = body.split("->")
    if len(sides) != 2 or (keep and not kept.split()):
        raise DistIRError(
            f"cannot read the rule {text!r}; write it as [b, k], [k, n] -> [b, n] keep k"
        )
    operands, results = (_tensors(side, text) for side in sides)
    rule = KernelRule(operands, results, frozenset(kept.split()))
    inputs = {n for dims in operands for dim in dims for n in dim}
    for name in rule.names:
        if name not in inputs:
            raise DistIRError(
                f"rule {text!r}: no operand has {name!r}; a dimension that results alone "
                f"have is written as its size"
            )
    unknown = sorted(rule.kept - set(rule.names))
    if unknown:
        raise DistIRError(f"rule {text!r}: there is no factor {unknown[0]!r} to keep")
    return rule


def _tensors(text: str, rule: str) -> tuple[NamedDims, ...]:
    if _TENSOR.sub("", text).replace(",", "").strip():
        raise DistIRError(
            f"cannot read {text.strip()!r} in the rule {rule!r}; write tensors as [b, k]"
        )
    return tuple(_dims(match.group(1), rule) for match in _TENSOR.finditer(text))


def _dims(text: str, rule: str) -> NamedDims:
    dims: list[NamedDim] = []
    for part in text.split(",") if text.strip() else []:
        words = part.split()
        if not words or not all(w.isdecimal() or _NAME.fullmatch(w) for w in words):
            raise DistIRError(
                f"cannot read the dimension {part.strip()!r} in the rule {rule!r}; write "
                f"names and numbers"
            )
        dims.append(tuple(int(w) if w.isdecimal() else w for w in words if w != "1"))
    names = [n for dim in dims for n in dim if isinstance(n, str)]
    if len(set(names)) < len(names):
        raise DistIRError(
            f"rule {rule!r}: [{text}] has a factor twice; write the dimensions that cannot "
            f"be split as numbers"
        )
    return tuple(dims)


def evaluated(expression: str, sizes: Mapping[str, int]) -> int:
    """
    Returns the value of `expression`, a sum of products such as `4*b*h*q*k + 2*b`, for
    the factor sizes in `sizes`. Raises DistIRError if a word is neither a number nor a
    factor.
    """
    total = 0
    for term in expression.split("+"):
        value = 1
        for text in term.split("*"):
            word = text.strip()
            if word.isdecimal():
                value *= int(word)
            elif word in sizes:
                value *= sizes[word]
            else:
                known = ", ".join(sizes) or "none"
                raise DistIRError(
                    f"cannot read {word!r} in {expression!r}; write a sum of products of "
                    f"numbers and factors of the rule ({known})"
                )
        total += value
    return total
