"""`activation-checkpoint`: keep fewer residuals and compute them again in the backward."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    FunctionType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import SCOPE
from distir.errors import DistIRError
from distir.gradients.reverse import FORWARD, SAVED
from distir.passes.options import DistIRPass
from distir.program import (
    KEPT,
    argument_attributes,
    argument_roles,
    drop_unused_results,
    entry_function,
    erase_unreachable,
    functions,
    return_op,
    set_argument_attributes,
    unique_name,
)
from distir.sharding.rule import rule_for

POLICIES = ("none", "full", "whole", "selective")


@dataclass(frozen=True)
class _CallPair:
    """A call of a forward function and the call of its backward."""

    forward: CallOp
    backward: CallOp


def saved_values(backward: FuncOp) -> list[tuple[str, int]]:
    """What the first arguments of a backward function are, as (kind, index)."""
    attr = backward.attributes.get(SAVED)
    if not isinstance(attr, ArrayAttr):
        return []
    texts = [a.data for a in attr.data if isinstance(a, StringAttr)]
    return [(kind, int(index)) for kind, index in (t.split() for t in texts)]


def saved_attribute(entries: Iterable[tuple[str, int]]) -> ArrayAttr[StringAttr]:
    """The attribute that `saved_values` reads."""
    return ArrayAttr([StringAttr(f"{kind} {index}") for kind, index in entries])


def _call_pairs(function: FuncOp, known: dict[str, FuncOp]) -> list[_CallPair]:
    """The forward calls of a function with their backwards, in forward order."""
    found: dict[CallOp, CallOp] = {}
    for op in function.body.block.ops:
        if isinstance(op, CallOp):
            forward = _forward_of(op, known[op.callee.string_value()], found)
            if forward is not None:
                found[forward] = op
    order = {op: i for i, op in enumerate(function.body.block.ops)}
    pairs = [_CallPair(forward, backward) for forward, backward in found.items()]
    return sorted(pairs, key=lambda pair: order[pair.forward])


def _forward_of(
    call: CallOp, backward: FuncOp, taken: Container[CallOp]
) -> CallOp | None:
    """
    The forward call that a call of a backward function belongs to: the one whose
    arguments and results it takes. Several are possible only if they compute the same;
    each is taken once. None if the callee is no backward function.
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


def _renumber_saved(module: ModuleOp, name: str, kept: Sequence[int]) -> None:
    """Follows a forward that has only these of its results left."""
    for function in functions(module).values():
        if function.attributes.get(FORWARD) == SymbolRefAttr(name):
            entries = [
                (kind, i if kind == "argument" else kept.index(i))
                for kind, i in saved_values(function)
            ]
            function.attributes[SAVED] = saved_attribute(entries)


def attention_core(forward: FuncOp) -> set[SSAValue]:
    """
    What selective recomputation drops: the results of a contraction of two activations
    and all that follows up to the next contraction. In attention these are the scores,
    the masked scores and the probabilities, which grow with the square of the sequence
    and cost little to compute again (Korthikanti et al. 2022, section 5).
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
            contraction and not in_core and not any(v in derived for v in op.operands)
        )
        if starts or (in_core and not contraction):
            core.update(op.results)
    return core


class _Variants:
    """Pairs of functions that keep fewer residuals, each made once."""

    def __init__(self, module: ModuleOp):
        self.module = module
        self.known = functions(module)
        self.made: dict[tuple[str, frozenset[int], str], tuple[FuncOp, FuncOp]] = {}

    def dropped(self, pair: _CallPair, policy: str) -> frozenset[int]:
        """The saved results of the forward that the policy does not keep."""
        forward = self.known[pair.forward.callee.string_value()]
        backward = self.known[pair.backward.callee.string_value()]
        results = {i for kind, i in saved_values(backward) if kind == "result"}
        if policy == "selective":
            core = attention_core(forward)
            values = return_op(forward).operands
            results = {i for i in results if values[i] in core}
        return frozenset(results)

    def apply(self, pair: _CallPair, drop: frozenset[int], policy: str) -> None:
        """Makes one pair of calls recompute these results; all of them, if `whole`."""
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
        call = CallOp(
            new.sym_name.data, operands, [r.type for r in pair.backward.results]
        )
        call.attributes.update(pair.backward.attributes)
        Rewriter.replace_op(pair.backward, call)

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
        # What an earlier run of the pass recomputes already is computed once.
        for op in list(body.ops):
            same = copies.get(_identity(op))
            if same is not None and same is not op:
                Rewriter.replace_op(op, [], same.results)
        for arg in gone.values():
            del attributes[arg.owner.args.index(arg)]  # type: ignore[union-attr]
            body.erase_arg(arg)  # type: ignore[arg-type]
        outputs = return_op(new).operands
        new.properties["function_type"] = FunctionType.from_lists(
            [a.type for a in body.args], [v.type for v in outputs]
        )
        set_argument_attributes(new, attributes)
        new.properties["sym_name"] = StringAttr(
            unique_name(self.module, f"{backward.sym_name.data}_recompute")
        )
        new.attributes[FORWARD] = SymbolRefAttr(forward.sym_name.data)
        new.attributes[SAVED] = saved_attribute(entries)
        Rewriter.insert_op(new, InsertPoint.after(backward))
        return forward, new


def _identity(op: Operation) -> object:
    """Equal for ops that compute the same from the same values."""
    return (
        op.name,
        tuple(op.operands),
        frozenset(op.properties.items()),
        frozenset((k, v) for k, v in op.attributes.items() if k != SCOPE),
    )


def _needed_ops(
    wanted: Iterable[SSAValue], known: dict[SSAValue, SSAValue]
) -> list[Operation]:
    """The forward ops that compute the wanted values from known ones, in order."""
    found: set[Operation] = set()
    pending = list(wanted)
    while pending:
        owner = pending.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            pending += [v for v in owner.operands if v not in known]
    block = next(iter(found)).parent_block() if found else None
    return [] if block is None else [op for op in block.ops if op in found]


@dataclass(frozen=True)
class ActivationCheckpointPass(DistIRPass):
    """
    Trades residuals for recomputation, per call of a differentiated function (a layer).

    - `policy`: `none`; `full`: the backward gets the arguments of the layer only and
      runs its forward again, as far as gradients need it (Chen et al. 2016); `whole`: it
      runs all of it again, as `torch.utils.checkpoint` does, also the last product of a
      GPT's layer, which no gradient needs: slower, and here to predict software that does
      so; `selective`: it recomputes what attention computes between its two products of
      activations (Korthikanti et al. 2022).
    - `every`: apply the policy to every n-th layer only; `layers`: to these only
      (indices in program order). All layers by default.
    """

    name = "activation-checkpoint"

    policy: str = "full"
    every: int = 1
    layers: tuple[int, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.policy not in POLICIES:
            raise DistIRError(
                f"activation-checkpoint: there is no policy {self.policy!r}; choose one "
                f"of {', '.join(POLICIES)}"
            )
        if self.every < 1:
            raise DistIRError("activation-checkpoint: `every` must be at least 1")
        if self.policy == "none":
            return
        pairs = _call_pairs(entry_function(op), functions(op))
        if not pairs:
            raise DistIRError(
                "activation-checkpoint: the program calls no differentiated function; "
                "run outline-repeats and differentiate first"
            )
        if self.layers and max(self.layers) >= len(pairs):
            raise DistIRError(
                f"activation-checkpoint: there is no layer {max(self.layers)}; the "
                f"program has {len(pairs)}"
            )
        variants = _Variants(op)
        for i, pair in enumerate(pairs):
            if i % self.every or (self.layers and i not in self.layers):
                continue
            drop = variants.dropped(pair, self.policy)
            if drop:
                variants.apply(pair, drop, self.policy)
        erase_unreachable(op)
        for name, kept in drop_unused_results(op).items():
            _renumber_saved(op, name, kept)
