"""
Activation checkpointing: functions keep fewer residuals, and their backward computes again
what it needs of the forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import floor

from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import RECOMPUTE, RECOMPUTE_BY, SCOPE
from distir.dialects.train_ops.attention import AttentionOp
from distir.dialects.train_ops.causal_attention import PlacedAttentionOp
from distir.dialects.train_ops.dropped_attention import DroppedAttentionOp
from distir.errors import DistIRError, one_of
from distir.gradients.call_pairs import (
    CallPair,
    call_pairs,
    describe_backward,
    renumber_saved,
    saved_values,
)
from distir.program import (
    KEPT,
    ancestors,
    argument_attributes,
    argument_roles,
    describe,
    drop_unused_results,
    entry_function,
    erase_unreachable,
    functions,
    replace_call,
    return_op,
    set_argument_attributes,
    text_attribute,
    unique_name,
)
from distir.sharding.rule import rule_for
from distir.transforms.offloading import Offloading

POLICIES = ("none", "full", "whole", "selective", "products", "offload")
"""
The policies, which say what a backward computes again or fetches; the pass `activation-checkpoint`
explains them.
"""


def check_policy(text: str, of: str) -> tuple[str, Fraction]:
    """
    Returns the policy that a text names, and the part of the layers that it holds for: all,
    or those of `full:0.5` or `full:1/2`. Raises DistIRError, which says what the text is
    `of`, for anything else.
    """
    name, colon, part = text.partition(":")
    one_of("checkpoint policy", name, POLICIES, of)
    if not colon:
        return name, Fraction(1)
    try:
        share = Fraction(part)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise DistIRError(
            f"{of}: {text!r} should say after the colon for which part of the layers the "
            f"policy {name!r} holds, a number above 0 and up to 1, such as {name}:0.5"
        )
    return name, share


def has_policy(layer: int, share: Fraction) -> bool:
    """Whether a layer is one of a part of all layers that is spread evenly over them."""
    return floor((layer + 1) * share) > floor(layer * share)


def checkpoint(
    module: ModuleOp, policy: str, every: int = 1, layers: Sequence[int] = ()
) -> None:
    """
    Lets backwards recompute values instead of keeping them as residuals, as
    `activation-checkpoint` says: by a policy, for every n-th layer, or for the given layers
    only. These are requests of their calls (`dist.recompute`), like those that calls have
    already: a policy of all layers leaves the latter as they are, one of given layers that
    differs is an error. Raises DistIRError.
    """
    policy, share = check_policy(policy, "activation-checkpoint")
    if every < 1:
        raise DistIRError("activation-checkpoint: `every` must be at least 1")
    entry = entry_function(module)
    calls = [op for op in entry.body.block.ops if RECOMPUTE in op.attributes]
    if policy == "none" and not calls:
        return
    pairs = call_pairs(entry, functions(module))
    if not pairs and policy != "none":
        raise DistIRError(
            "activation-checkpoint: the program calls no differentiated function; "
            "run outline-repeats and differentiate first"
        )
    if layers and max(layers) >= len(pairs):
        raise DistIRError(
            f"activation-checkpoint: there is no layer {max(layers)}; the "
            f"program has {len(pairs)}"
        )
    for i, pair in enumerate(pairs):
        asked = i in layers if layers else has_policy(i, share)
        if i % every == 0 and asked:
            _request_policy(pair.forward, policy, i if layers else None)
    recomputing, offloading = Recomputing(module), Offloading(module)
    asked = _take_policies(entry)
    for pair in pairs:
        policy = asked.get(pair.forward, "none")
        if policy == "none":
            continue
        if policy == "offload":
            offloading.apply(pair)
            continue
        drop = recomputing.dropped(pair, policy)
        if drop:
            recomputing.apply(pair, drop, policy)
    erase_unreachable(module)
    for name, kept in drop_unused_results(module).items():
        renumber_saved(module, name, kept)


def _request_policy(call: CallOp, policy: str, layer: int | None) -> None:
    """
    Requests a policy for a call that has no request yet. Raises DistIRError if it has
    another one, and `layer`, its number, was named.
    """
    before = text_attribute(call.attributes, RECOMPUTE)
    if before is None:
        call.attributes[RECOMPUTE] = StringAttr(policy)
    elif layer is not None and before != policy:
        by = text_attribute(call.attributes, RECOMPUTE_BY) or f"its {RECOMPUTE}"
        raise DistIRError(
            f"activation-checkpoint: layers={layer} asks for policy {policy!r} of "
            f"{describe(call)}, but {by} asks for {before!r}; ask for one of these"
        )


def _take_policies(entry: FuncOp) -> dict[Operation, str]:
    """Returns the policies that calls of a function request, and removes the requests."""
    found: dict[Operation, str] = {}
    for op in entry.body.block.ops:
        asked = text_attribute(op.attributes, RECOMPUTE)
        op.attributes.pop(RECOMPUTE_BY, None)
        if asked is not None:
            del op.attributes[RECOMPUTE]
            found[op] = one_of(RECOMPUTE, asked, POLICIES, describe(op))
    return found


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


class Recomputing:
    """Makes pairs of functions that keep fewer residuals, each pair once."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self.known = functions(module)
        self.made: dict[tuple[str, frozenset[int], str], tuple[FuncOp, FuncOp]] = {}

    def dropped(self, pair: CallPair, policy: str) -> frozenset[int]:
        """
        Returns the indices of the forward's saved results that the policy does not keep.
        """
        forward = self.known[pair.forward.callee.string_value()]
        backward = self.known[pair.backward.callee.string_value()]
        results = {i for kind, i in saved_values(backward) if kind == "result"}
        if policy == "selective":
            core = attention_core(forward)
            values = return_op(forward).operands
            results = {i for i in results if values[i] in core}
        if policy == "products":
            results = beside_products(forward, results)
        return frozenset(results)

    def apply(self, pair: CallPair, drop: frozenset[int], policy: str) -> None:
        """
        Makes one pair of calls recompute these results instead of saving them; all of them
        under the policy `whole`.
        """
        name = pair.backward.callee.string_value()
        backward = self.known[name]
        forward = self.known[pair.forward.callee.string_value()]
        saved = saved_values(backward)
        key = (name, drop, policy)
        if key not in self.made:
            self.made[key] = self._make(forward, backward, saved, drop, policy)
        new = self.made[key][1]
        operands: list[SSAValue] = [
            (pair.forward.operands if kind == "argument" else pair.forward.results)[i]
            for kind, i in saved_values(new)
        ]
        operands += pair.backward.operands[len(saved) :]
        types = pair.backward.result_types
        replace_call(pair.backward, new.sym_name.data, operands, types)

    def _make(
        self,
        forward: FuncOp,
        backward: FuncOp,
        saved: Sequence[tuple[str, int]],
        drop: frozenset[int],
        policy: str,
    ) -> tuple[FuncOp, FuncOp]:
        new = backward.clone()
        body = new.body.block
        values = return_op(forward).operands
        attributes = argument_attributes(new)
        # Forward values that the new backward has, by forward value.
        known: dict[SSAValue, SSAValue] = {}
        gone: dict[SSAValue, SSAValue] = {}
        for (kind, i), arg in zip(saved, list(body.args), strict=False):
            value = forward.body.block.args[i] if kind == "argument" else values[i]
            if kind == "result" and i in drop:
                gone[value] = arg
            else:
                known[value] = arg
        entries = [
            entry for entry in saved if entry[0] != "result" or entry[1] not in drop
        ]
        needed = _needed_ops(gone, known)
        ops = needed
        if policy == "whole":
            ops = [op for op in forward.body.block.ops if not isinstance(op, ReturnOp)]
        position = sum(kind == "argument" for kind, _ in entries)
        for arg in forward.body.block.args:
            if arg in known or not any(arg in op.operands for op in ops):
                continue
            known[arg] = body.insert_arg(arg.type, position)
            known[arg].name_hint = arg.name_hint
            attributes.insert(position, argument_attributes(forward)[arg.index])
            entries.insert(position, ("argument", arg.index))
            position += 1
        first = body.first_op
        copies: dict[object, Operation] = {}
        for op in ops:
            copy = op.clone({v: known[v] for v in op.operands})
            if op not in needed:
                copy.attributes[KEPT] = UnitAttr()
            assert first is not None
            body.insert_op_before(copy, first)
            copies.setdefault(_identity(copy), copy)
            known |= zip(op.results, copy.results, strict=True)
        for value, arg in gone.items():
            arg.replace_all_uses_with(known[value])
        # Values that an earlier run of the pass recomputes already are not computed twice.
        for op in list(body.ops):
            same = copies.get(_identity(op))
            if same is not None and same is not op:
                Rewriter.replace_op(op, [], same.results)
        for arg in gone.values():
            del attributes[arg.owner.args.index(arg)]  # type: ignore[union-attr]
            body.erase_arg(arg)  # type: ignore[arg-type]
        new.update_function_type()
        set_argument_attributes(new, attributes)
        new.properties["sym_name"] = StringAttr(
            unique_name(self.module, f"{backward.sym_name.data}_recompute")
        )
        describe_backward(new, forward, entries)
        Rewriter.insert_op(new, InsertPoint.after(backward))
        return forward, new


def _identity(op: Operation) -> object:
    """Returns a key that is equal for ops that compute the same from the same values."""
    return (
        op.name,
        tuple(op.operands),
        frozenset(op.properties.items()),
        frozenset((k, v) for k, v in op.attributes.items() if k != SCOPE),
    )


def _needed_ops(
    wanted: Iterable[SSAValue], known: dict[SSAValue, SSAValue]
) -> list[Operation]:
    """Returns the forward ops, in order, that compute the wanted values from known ones."""
    found = ancestors(wanted, known)
    block = next(iter(found)).parent_block() if found else None
    return [] if block is None else [op for op in block.ops if op in found]
