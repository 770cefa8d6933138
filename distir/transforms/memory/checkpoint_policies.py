"""
The policies of activation checkpointing. A policy tells which values of a layer's
forward pass are kept for its backward pass. The backward pass computes all other values
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.train_ops.attention import AttentionOp, PlacedAttentionOp
from distir.dialects.train_ops.dropout import DroppedAttentionOp
from distir.dialects.train_ops.experts import DispatchOp
from distir.errors import DistIRError, did_you_mean, listed, one_of
from distir.program import ancestors, argument_roles, return_op
from distir.sharding.rule import rule_for

POLICIES = ("none", "full", "whole", "selective", "products", "offload")
"""
The names of the policies without a list of ops. A policy says which values a backward
computes again or fetches from the host. The pass `activation-checkpoint` explains them.
"""


LISTS = ("save", "recompute")
"""
The names of the policies with a list of ops, as in `save:onnx.MatMul+train.attention`.
`save` keeps the results of the listed ops, `recompute` those of all other ops.
"""


@dataclass(frozen=True)
class LayerPolicies:
    """
    The checkpointing policy of each layer, given by a text of one of these forms:

    - `full`: all layers have the policy `full`. A policy may also list ops, as in
      `save:onnx.MatMul`;
    - `full:0.5` or `full:1/2`: that fraction of the layers has the policy, evenly
      spread. The remaining layers keep all values;
    - `full:6/6+4/6+0/7`: 6 of the first 6 layers have the policy, 4 of the next 6, and
      none of the last 7. This suits a pipeline, whose first stages keep values of more
      micro-batches;
    - `full:1/2:products`: the remaining layers have the policy `products`.

    The fields are:

    - `policy`, `others`: the policy before the fraction, and the policy of the remaining
      layers;
    - `parts`: for each group of consecutive layers, the fraction of the group that has
      `policy`;
    - `lengths`: the number of layers of each group, or empty if all layers are one group.
    """

    policy: str
    others: str = "none"
    parts: tuple[Fraction, ...] = (Fraction(1),)
    lengths: tuple[int, ...] = ()

    @staticmethod
    def of(text: str, what: str) -> LayerPolicies:
        """
        Returns the policies that `text` describes. Raises DistIRError if `text`
        describes no policies; `what` names the source of the text in the error's
        message.
        """
        name, colon, rest = text.partition(":")
        if name in LISTS:
            if not all(rest.split("+")):
                raise DistIRError(
                    f"{what}: {text!r} should list ops after the colon, such as "
                    f"{name}:onnx.MatMul+train.attention"
                )
            if ":" in rest:
                ops = rest.partition(":")[0]
                raise DistIRError(
                    f"{what}: {text!r} should list ops after the colon and nothing else; "
                    f"for a part of the layers, say first what the others do, such as "
                    f"none:1/2:{name}:{ops}"
                )
            return LayerPolicies(text)
        lists = tuple(f"{each}:OP+OP" for each in LISTS)
        one_of("checkpoint policy", name, (*POLICIES, *lists), what)
        if not colon:
            return LayerPolicies(name)
        shares, more, others = rest.partition(":")
        if more:
            others = check_layer_policy(others, what)
        try:
            parts, lengths = _parts(shares)
        except (ValueError, ZeroDivisionError) as error:
            raise DistIRError(
                f"{what}: {text!r} should say after the colon for which part of the layers the "
                f"policy {name!r} holds, a number above 0 and up to 1, such as {name}:0.5, or "
                f"for how many of each run of layers, such as {name}:4/6+0/6"
            ) from error
        return LayerPolicies(name, others or "none", parts, lengths)

    @staticmethod
    def of_runs(
        policy: str, others: str, runs: Sequence[tuple[int, int]]
    ) -> LayerPolicies:
        """
        Returns the policies for groups of consecutive layers. Each group is a pair in
        `runs`: the number of its layers that have the policy `policy`, and the number
        of all its layers. The remaining layers have the policy `others`.
        """
        parts = tuple(Fraction(some, length) for some, length in runs)
        lengths = tuple(length for _, length in runs)
        return LayerPolicies(
            policy, others, parts, lengths if len(runs) > 1 else lengths[:0]
        )

    @property
    def is_one(self) -> bool:
        """Whether all layers have the same policy."""
        return self.parts == (1,) and not self.lengths

    def of_layers(self, count: int, what: str) -> list[str]:
        """
        Returns the policy of each of `count` layers. Raises DistIRError if the policies
        are for a different number of layers; `what` names the source of the policies in
        the error's message.
        """
        lengths = self.lengths or (count,)
        if sum(lengths) != count:
            raise DistIRError(
                f"{what}: {str(self)!r} is for {sum(lengths)} layers, but the program has "
                f"{count}"
            )
        return [
            self.policy if has_policy(layer, length, part) else self.others
            for part, length in zip(self.parts, lengths, strict=True)
            for layer in range(length)
        ]

    def __str__(self) -> str:
        shares = str(self.parts[0])
        if self.lengths:
            pairs = zip(self.parts, self.lengths, strict=True)
            shares = "+".join(f"{part * length}/{length}" for part, length in pairs)
        if self.is_one:
            return self.policy
        others = "" if self.others == "none" else f":{self.others}"
        return f"{self.policy}:{shares}{others}"


def _parts(text: str) -> tuple[tuple[Fraction, ...], tuple[int, ...]]:
    """
    Returns the fractions of layers in `text`, and the numbers of layers to which the
    fractions apply. The second tuple is empty if the text is a single fraction, of all
    layers. Raises ValueError or ZeroDivisionError if the text is malformed.
    """
    terms = text.split("+")
    parts = tuple(map(Fraction, terms))
    lengths: tuple[int, ...] = ()
    if len(terms) > 1:
        lengths = tuple(int(term.partition("/")[2]) for term in terms)
    if not all(0 <= part <= 1 for part in parts) or not any(parts):
        raise ValueError
    return parts, lengths


def check_layer_policy(text: str, what: str) -> str:
    """
    Returns `text` if it is the policy of a single layer. Raises DistIRError if `text`
    is not a policy, or is a policy for a fraction of several layers; `what` names the
    source of the text in the error's message.
    """
    policies = LayerPolicies.of(text, what)
    if policies.policy != text:
        raise DistIRError(
            f"{what}: {text!r} is for a part of several layers; ask for "
            f"{policies.policy!r} of some"
        )
    return text


def has_policy(layer: int, count: int, part: Fraction) -> bool:
    """
    Whether the layer with index `layer` is among the layers that have a policy: the
    fraction `part` of `count` layers, evenly spread. The last layer is excluded unless
    the fraction is 1: its backward pass runs first, while the values of all other
    layers are still in memory, so its recomputation would add to the memory peak.
    """
    return floor((count - layer) * part) > floor((count - layer - 1) * part)


@dataclass(frozen=True)
class KeptOps:
    """
    The ops whose results a policy keeps: the ops with a name in `names` or, with
    `inverted`, the ops with a name that is not in `names`. Results of ops without
    operands, such as constants, are never kept.
    """

    names: frozenset[str]
    inverted: bool

    @staticmethod
    def of(policy: str) -> KeptOps | None:
        """Returns the ops that `policy` keeps, or None if the policy lists no ops."""
        name, _, ops = policy.partition(":")
        if name not in LISTS:
            return None
        return KeptOps(frozenset(ops.split("+")), name == "recompute")

    def has(self, op: Operation) -> bool:
        """Whether the policy keeps the results of `op`."""
        if isinstance(op, ReturnOp) or not op.operands:
            return False
        return (op.name in self.names) != self.inverted

    def check(self, known: Collection[str], what: str) -> None:
        """
        Raises DistIRError if a listed name is not in `known`, the names of the ops of
        all layers. The error's message starts with `what`.
        """
        for name in sorted(self.names - set(known)):
            raise DistIRError(
                f"{what} names {name!r}, but no differentiated function has such an op; "
                f"{did_you_mean(name, known)}there are {listed(sorted(known), 12)}"
            )


def attention_core(forward: FuncOp) -> set[SSAValue]:
    """
    Returns the values that selective recomputation does not keep: the results of each
    contraction of two activations, and all values computed from them up to the next
    contraction. In attention these are the scores, the masked scores and the
    probabilities. They grow with the square of the sequence length and are cheap to
    compute again (Korthikanti et al. 2022, section 5). If attention is a single op, the
    set has none of these values.
    """
    roles = argument_roles(forward)
    derived: set[SSAValue] = {
        arg
        for arg, role in zip(forward.body.block.args, roles, strict=True)
        if role != "input"
    }
    core: set[SSAValue] = set()
    for op in forward.body.block.ops:
        if isinstance(op, CallOp | ReturnOp):
            continue
        if all(v in derived for v in op.operands):
            derived.update(op.results)
            continue
        contraction = rule_for(op).flops > 0
        in_core = any(v in core for v in op.operands)
        starts = (
            contraction
            and not isinstance(op, AttentionOp | DroppedAttentionOp | PlacedAttentionOp)
            and not in_core
            and not any(v in derived for v in op.operands)
        )
        if starts or (in_core and not contraction):
            core.update(op.results)
    return core


def beside_products(forward: FuncOp, results: Iterable[int]) -> set[int]:
    """
    Returns the indices in `results` of those results of `forward` that can be computed
    again without a contraction. They are computed from the arguments and from all other
    results of `forward`. A contraction is a matrix product, a convolution or attention.
    Excludes the sum of a product and a bias, because the product would have to be kept
    instead. Excludes the tokens that experts receive, because devices would exchange
    them again.
    """
    values = return_op(forward).operands
    kept: set[SSAValue] = set(forward.body.block.args)
    place: dict[SSAValue, int] = {}
    for op in forward.body.block.ops:
        place |= {result: len(place) for result in op.results}
    dropped: set[int] = set()
    for index in sorted(results, key=lambda i: place.get(values[i], -1)):
        needed = ancestors([values[index]], dict.fromkeys(kept))
        costly = any(
            isinstance(o, CallOp | DispatchOp) or rule_for(o).flops > 0 for o in needed
        )
        if costly:
            kept.add(values[index])
        else:
            dropped.add(index)
    return dropped
