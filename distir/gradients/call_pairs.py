"""
Records in a differentiated program, for each backward function, the forward function to
which it belongs and the values that it takes from the forward function. Calls of the
forward function can then be matched with calls of the backward function.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp

from distir.program import functions

FORWARD = "train.forward"
"""The attribute of a backward function that names its forward function."""

SAVED = "train.saved"
"""
The attribute of a backward function that describes its first arguments: the values of
the forward that they hold, as `"argument 0"` or `"result 1"`. The arguments after them
are gradients of results.
"""


@dataclass(frozen=True)
class CallPair:
    """A call of a forward function, and the call of its backward function."""

    forward: CallOp
    backward: CallOp


def saved_values(backward: FuncOp) -> list[tuple[str, int]]:
    """
    Returns the arguments and results of the forward function that the first arguments
    of a backward function hold, each as a kind ("argument" or "result") and an index.
    """
    attr = backward.attributes.get(SAVED)
    if not isinstance(attr, ArrayAttr):
        return []
    texts = [a.data for a in attr.data if isinstance(a, StringAttr)]
    return [(kind, int(index)) for kind, index in (t.split() for t in texts)]


def describe_backward(
    backward: FuncOp, forward: FuncOp, saved: Iterable[tuple[str, int]]
) -> None:
    """
    Records on the function `backward` that it belongs to `forward`. Also records
    `saved`, the values of the forward function that the first arguments of `backward`
    hold. Each value is given as a kind ("argument" or "result") and an index.
    """
    backward.attributes[FORWARD] = SymbolRefAttr(forward.sym_name.data)
    backward.attributes[SAVED] = ArrayAttr(
        [StringAttr(f"{kind} {index}") for kind, index in saved]
    )


def call_pairs(function: FuncOp, known: Mapping[str, FuncOp]) -> list[CallPair]:
    """
    Returns the pairs of forward and backward calls in `function`, in the order of the
    forward calls. `known` holds the functions of the module, by name.
    """
    found: dict[CallOp, CallOp] = {}
    for op in function.body.block.ops:
        if isinstance(op, CallOp):
            forward = _forward_of(op, known[op.callee.string_value()], found)
            if forward is not None:
                found[forward] = op
    order = {op: i for i, op in enumerate(function.body.block.ops)}
    pairs = [CallPair(forward, backward) for forward, backward in found.items()]
    return sorted(pairs, key=lambda pair: order[pair.forward])


def _forward_of(
    call: CallOp, backward: FuncOp, taken: Container[CallOp]
) -> CallOp | None:
    """
    Returns the forward call to which `call`, a call of the function `backward`,
    belongs: the call whose arguments and results `call` takes as operands. If several
    calls match, they compute the same values; each call is returned only once (`taken`
    has the earlier ones). Returns None if `backward` is not a backward function.
    """
    name = backward.attributes.get(FORWARD)
    saved = list(zip(saved_values(backward), call.operands, strict=False))
    if not isinstance(name, SymbolRefAttr) or not saved:
        return None
    (kind, index), value = saved[0]
    candidates = (
        [value.owner]
        if kind == "result"
        else [use.operation for use in value.uses if use.index == index]
    )
    for op in candidates:
        if (
            isinstance(op, CallOp)
            and op.callee.string_value() == name.string_value()
            and op.parent_block() is call.parent_block()
            and op not in taken
            and all(
                value is (op.operands if kind == "argument" else op.results)[i]
                for (kind, i), value in saved
            )
        ):
            return op
    return None


def renumber_saved(module: ModuleOp, name: str, kept: Sequence[int]) -> None:
    """
    Adapts the records of the backward functions of `name`, a forward function, after
    results of `name` were removed. `kept` are the old indices of the remaining results.
    """
    known = functions(module)
    for function in known.values():
        if function.attributes.get(FORWARD) == SymbolRefAttr(name):
            entries = [
                (kind, i if kind == "argument" else kept.index(i))
                for kind, i in saved_values(function)
            ]
            describe_backward(function, known[name], entries)
