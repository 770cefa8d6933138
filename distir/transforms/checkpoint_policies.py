"""
The policies of activation checkpointing: what the backward of a layer computes again instead of
keeping it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.train_ops.attention import AttentionOp
from distir.dialects.train_ops.causal_attention import PlacedAttentionOp
from distir.dialects.train_ops.dropped_attention import DroppedAttentionOp
from distir.errors import DistIRError, listed, one_of
from distir.program import ancestors, argument_roles, return_op
from distir.sharding.rule import rule_for
from distir.suggestions import did_you_mean

POLICIES = ("none", "full", "whole", "selective", "products", "offload")
"""
The policies, which say what a backward computes again or fetches; the pass `activation-checkpoint`
explains them.
"""


LISTS = ("save", "recompute")
"""
The policies that list ops, as in `save:onnx.MatMul+train.attention`: the results of these ops
are kept, or those of all others.
"""


def check_policy(text: str, of: str) -> tuple[str, Fraction]:
    """
    Returns the policy that a text names, and the part of the layers that it holds for: all,
    or those of `full:0.5` or `full:1/2`. Raises DistIRError, which says what the text is
    `of`, for anything else.
    """
    name, colon, rest = text.partition(":")
    if name in LISTS:
        if not all(rest.split("+")):
            raise DistIRError(
                f"{of}: {text!r} should list ops after the colon, such as "
                f"{name}:onnx.MatMul+train.attention"
            )
        return text, Fraction(1)
    lists = tuple(f"{each}:OP+OP" for each in LISTS)
    one_of("checkpoint policy", name, (*POLICIES, *lists), of)
    if not colon:
        return name, Fraction(1)
    try:
        share = Fraction(rest)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise DistIRError(
            f"{of}: {text!r} should say after the colon for which part of the layers the "
            f"policy {name!r} holds, a number above 0 and up to 1, such as {name}:0.5"
        )
    return name, share


def check_layer_policy(text: str, of: str) -> str:
    """Returns the policy of one layer, as `check_policy`. Raises DistIRError."""
    policy, _ = check_policy(text, of)
    if policy != text:
        raise DistIRError(
            f"{of}: {text!r} is for a part of several layers; ask for {policy!r} of some"
        )
    return policy


def has_policy(layer: int, share: Fraction) -> bool:
    """Whether a layer is one of a part of all layers that is spread evenly over them."""
    return floor((layer + 1) * share) > floor(layer * share)


@dataclass(frozen=True)
class KeptOps:
    """
    The ops whose results a policy keeps: those of these `names`, or with `inverted` all
    others. What only repeats a constant is never kept.
    """

    names: frozenset[str]
    inverted: bool

    @staticmethod
    def of(policy: str) -> KeptOps | None:
        """Returns what a policy that lists ops keeps; None for the others."""
        name, _, ops = policy.partition(":")
        if name not in LISTS:
            return None
        return KeptOps(frozenset(ops.split("+")), name == "recompute")

    def has(self, op: Operation) -> bool:
        """Whether the results of an op are kept."""
        if isinstance(op, ReturnOp) or not op.operands:
            return False
        return (op.name in self.names) != self.inverted

    def check(self, known: Collection[str], what: str) -> None:
        """Refuses names that no layer has, of which `known` are those of all layers' ops."""
        for name in sorted(self.names - set(known)):
            raise DistIRError(
                f"{what} names {name!r}, but no differentiated function has such an op; "
                f"{did_you_mean(name, known)}there are {listed(sorted(known), 12)}"
            )


def attention_core(forward: FuncOp) -> set[SSAValue]:
    """
    Returns the values that selective recomputation drops: the results of a contraction of
    two activations and all that follows up to the next contraction. In attention these are
    the scores, the masked scores and the probabilities, which grow with the square of the
    sequence length and are cheap to compute again (Korthikanti et al. 2022, section 5).
    Attention that is a single op keeps none of these anyway.
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
    Returns those of a forward's results that can be computed again from its arguments and
    from its other results without a contraction: a product, a convolution or attention. A
    sum of a product and a bias stays, as the product would have to be kept instead.
    """
    values = return_op(forward).operands
    kept: set[SSAValue] = set(forward.body.block.args)
    place: dict[SSAValue, int] = {}
    for op in forward.body.block.ops:
        place |= {result: len(place) for result in op.results}
    dropped: set[int] = set()
    for index in sorted(results, key=lambda i: place.get(values[i], -1)):
        needed = ancestors([values[index]], dict.fromkeys(kept))
        costly = any(isinstance(o, CallOp) or rule_for(o).flops > 0 for o in needed)
        if costly:
            kept.add(values[index])
        else:
            dropped.add(index)
    return dropped
