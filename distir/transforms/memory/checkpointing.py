"""
Activation checkpointing: the backward pass computes values of the forward pass again,
so that functions keep fewer residuals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import (
    KEPT,
    RECOMPUTE,
    RECOMPUTE_BY,
    RECOMPUTED,
    SCOPE,
)
from distir.errors import DistIRError
from distir.gradients.call_pairs import (
    CallPair,
    call_pairs,
    describe_backward,
    renumber_saved,
    saved_values,
)
from distir.gradients.reverse import recomputed
from distir.program import (
    ancestors,
    argument_attributes,
    describe,
    drop_unused_results,
    entry_function,
    functions,
    replace_call,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_results,
    unique_name,
)
from distir.program.functions import erase_unreachable
from distir.transforms.memory.checkpoint_policies import (
    KeptOps,
    LayerPolicies,
    attention_core,
    beside_products,
    check_layer_policy,
)
from distir.transforms.memory.offloading import Offloading

_NAME = "activation-checkpoint"


def checkpoint(
    module: ModuleOp, policy: str, every: int = 1, layers: Sequence[int] = ()
) -> None:
    """
    Lets the backward pass of layers recompute values instead of keeping them as
    residuals. The policy applies to every `every`-th layer, or only to the layers with
    the indices `layers`, if any. The pass `activation-checkpoint` explains the
    policies. A policy that a call requests in `dist.recompute` takes precedence. Raises
    DistIRError if a request contradicts the policy for a layer in `layers`.
    """
    policies = LayerPolicies.of(policy, _NAME)
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
    of_layers = [] if layers else policies.of_layers(len(pairs), _NAME)
    for i, pair in enumerate(pairs):
        if i % every == 0 and (not layers or i in layers):
            asked = policies.policy if layers else of_layers[i]
            _request_policy(pair.forward, asked, i if layers else None)
    recomputing, offloading = Recomputing(module), Offloading(module)
    asked = _take_policies(entry)
    _check_ops(asked.values(), [recomputing.forward_of(pair) for pair in pairs])
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
    Requests `policy` for a call that has no request yet. `layer` is the index of the
    layer if the user named the layer, else None. Raises DistIRError if the user named
    the layer and the call already requests a different policy.
    """
    before = RECOMPUTE.of(call.attributes)
    if before is None:
        call.attributes[RECOMPUTE] = RECOMPUTE.attr(policy)
    elif layer is not None and before != policy:
        by = RECOMPUTE_BY.of(call.attributes) or f"its {RECOMPUTE}"
        raise DistIRError(
            f"activation-checkpoint: layers={layer} asks for policy {policy!r} of "
            f"{describe(call)}, but {by} asks for {before!r}; ask for one of these"
        )


def _take_policies(entry: FuncOp) -> dict[Operation, str]:
    """
    Returns the policy that each call in `entry` requests, if any, and removes the
    requests.
    """
    found: dict[Operation, str] = {}
    for op in entry.body.block.ops:
        asked = RECOMPUTE.of(op.attributes)
        op.attributes.pop(RECOMPUTE_BY, None)
        if asked is not None:
            del op.attributes[RECOMPUTE]
            found[op] = check_layer_policy(asked, describe(op))
    return found


def _check_ops(policies: Iterable[str], forwards: Iterable[FuncOp]) -> None:
    """Raises DistIRError if a policy lists an op that is in none of the `forwards`."""
    lists = {p: kept for p in policies if (kept := KeptOps.of(p)) is not None}
    if lists:
        ops = [op for each in forwards for op in each.body.block.ops if op.operands]
        known = {op.name for op in ops if not isinstance(op, ReturnOp)}
        for policy, kept in lists.items():
            kept.check(known, f"activation-checkpoint: {policy!r}")


class Recomputing:
    """
    Makes forward and backward functions that keep fewer residuals. Calls that need
    equal functions share them.
    """

    def __init__(self, module: ModuleOp):
        self.module = module
        self.known = functions(module)
        self.made: dict[tuple[str, frozenset[int], str], tuple[FuncOp, FuncOp]] = {}
        self.giving: dict[tuple[str, str], FuncOp] = {}
        """
        Forward functions with additional results, by the original's name and the
        policy. The additional results are values that the policy keeps.
        """

    def forward_of(self, pair: CallPair) -> FuncOp:
        """Returns the forward function of a pair of calls."""
        return self.known[pair.forward.callee.string_value()]

    def dropped(self, pair: CallPair, policy: str) -> frozenset[int]:
        """
        Returns the indices of those results of the forward function that are saved for
        the backward function although the policy does not keep them.
        """
        forward, lists = self.forward_of(pair), KeptOps.of(policy)
        backward = self.known[pair.backward.callee.string_value()]
        results = {i for kind, i in saved_values(backward) if kind == "result"}
        if lists is not None:
            owners = [value.owner for value in return_op(forward).operands]
            results = {
                i
                for i in results
                if isinstance(op := owners[i], Operation) and not lists.has(op)
            }
        if policy == "selective":
            core = attention_core(forward)
            values = return_op(forward).operands
            results = {i for i in results if values[i] in core}
        if policy == "products":
            results = beside_products(forward, results)
        return frozenset(results)

    def apply(self, pair: CallPair, drop: frozenset[int], policy: str) -> None:
        """
        Makes the backward call of a pair recompute the results with the indices `drop`.
        Under the policy `whole`, it recomputes the whole forward function. Under a
        policy that lists ops, the forward function also returns the results of these
        ops, and the dropped results are computed from them.
        """
        name = pair.backward.callee.string_value()
        backward = self.known[name]
        saved = saved_values(backward)
        key = (name, drop, policy)
        if key not in self.made:
            forward = self._giving(self.forward_of(pair), policy)
            self.made[key] = self._make(forward, backward, saved, drop, policy)
        forward, new = self.made[key]
        call = pair.forward
        if forward.sym_name.data != call.callee.string_value():
            outputs = forward.function_type.outputs.data
            call = replace_call(call, forward.sym_name.data, call.operands, outputs)
        operands: list[SSAValue] = [
            (call.operands if kind == "argument" else call.results)[i]
            for kind, i in saved_values(new)
        ]
        operands += pair.backward.operands[len(saved) :]
        types = pair.backward.result_types
        replace_call(pair.backward, new.sym_name.data, operands, types)

    def _giving(self, forward: FuncOp, policy: str) -> FuncOp:
        """
        Returns a copy of the forward function that returns all values that the policy
        keeps, or `forward` itself if the policy lists no ops.
        """
        lists = KeptOps.of(policy)
        if lists is None:
            return forward
        key = (forward.sym_name.data, policy)
        if key not in self.giving:
            new = forward.clone()
            name = unique_name(self.module, f"{forward.sym_name.data}_saving")
            new.properties["sym_name"] = StringAttr(name)
            values = dict.fromkeys(return_op(new).operands)
            kept = [r for op in new.body.block.ops if lists.has(op) for r in op.results]
            more = [value for value in kept if value not in values]
            attributes = result_attributes(new) + [{} for _ in more]
            set_results(new, [*return_op(new).operands, *more], attributes)
            Rewriter.insert_op(new, InsertPoint.after(forward))
            self.giving[key] = new
        return self.giving[key]

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
        # Maps forward values to the values of the new backward that equal them.
        known: dict[SSAValue, SSAValue] = {}
        gone: dict[SSAValue, SSAValue] = {}
        for (kind, i), arg in zip(saved, body.args[: len(saved)], strict=True):
            value = forward.body.block.args[i] if kind == "argument" else values[i]
            if kind == "result" and i in drop:
                gone[value] = arg
            else:
                known[value] = arg
        entries = [
            entry for entry in saved if entry[0] != "result" or entry[1] not in drop
        ]
        lists = KeptOps.of(policy)
        given: dict[SSAValue, int] = {}
        """
        The results of the forward, with their indices, from which the policy computes
        others.
        """
        if lists is not None:
            given = {
                value: i
                for i, value in enumerate(values)
                if isinstance(value.owner, Operation) and lists.has(value.owner)
            }
        needed = _needed_ops(gone, known | {value: value for value in given})
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
        for value, i in given.items():
            if value in known or not any(value in op.operands for op in needed):
                continue
            known[value] = body.insert_arg(value.type, position)
            known[value].name_hint = value.name_hint
            attributes.insert(position, {})
            entries.insert(position, ("result", i))
        first = body.first_op
        copies: dict[object, Operation] = {}
        for op in ops:
            copy = recomputed(op, {v: known[v] for v in op.operands})
            if op not in needed:
                copy.attributes[KEPT] = UnitAttr()
            assert first is not None
            body.insert_op_before(copy, first)
            copies.setdefault(_identity(copy), copy)
            known |= zip(op.results, copy.results, strict=True)
        for value, arg in gone.items():
            arg.replace_all_uses_with(known[value])
        # An earlier run of the pass may recompute the same values: they are shared.
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
    """
    Returns a key that is equal for ops that compute the same from the same values.
    """
    attributes = op.attributes.items()
    return (
        op.name,
        tuple(op.operands),
        tuple(op.regions),
        frozenset(op.properties.items()),
        frozenset((k, v) for k, v in attributes if k not in (SCOPE, RECOMPUTED)),
    )


def _needed_ops(
    wanted: Iterable[SSAValue], known: dict[SSAValue, SSAValue]
) -> list[Operation]:
    """
    Returns the ops of the forward function, in program order, that compute the values
    `wanted` from the values in `known`.
    """
    found = ancestors(wanted, known)
    block = next(iter(found)).parent_block() if found else None
    return [] if block is None else [op for op in block.ops if op in found]
