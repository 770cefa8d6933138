"""
Reverse-mode differentiation of functions.

A called function `@f` becomes a pair of functions. `@f_forward` returns the results of
`@f` and then the residuals, which are the values that the backward function needs.
`@f_backward` takes the residuals and the gradients of the results, and returns the
gradients of the arguments. A layer that is called many times stays one function. The
backward function also takes the arguments of `@f` that it needs, and repeats constants.
It records the values that it takes (`call_pairs`), so that `activation-checkpoint` can
later recompute residuals instead of keeping them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    TensorType,
    UnitAttr,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from distir.dialects.constants import draws_random_numbers
from distir.dialects.dist import ConstrainOp
from distir.dialects.dist_attributes import (
    COMPILED,
    DOUBT,
    RECOMPUTE,
    RECOMPUTED,
    SCOPE,
    STOP_GRADIENT,
)
from distir.dialects.kernel import KernelCallOp
from distir.errors import DistIRError
from distir.gradients.call_pairs import describe_backward
from distir.gradients.gradient_types import GradientTypes
from distir.gradients.kernel_gradients import KernelGradients
from distir.gradients.rule import (
    GradientBuilder,
    gradients_of,
    is_differentiable,
    take_training_forms,
)
from distir.program import (
    argument_attributes,
    argument_roles,
    describe,
    erase_dead,
    functions,
    replace_call,
    result_attributes,
    return_op,
    set_results,
    unique_name,
)
from distir.program.doubts import reason
from distir.sharding.rule import rule_for


@dataclass
class Saved:
    """
    The values of a forward body that its backward body uses: first arguments of the
    forward body, each with its index, then other values in program order.
    """

    arguments: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    others: list[SSAValue] = field(default_factory=list[SSAValue])


def _prepared(forward: FuncOp) -> set[Operation]:
    """
    Returns the ops that depend only on parameters and constants, such as transposes and
    casts of weights.
    """
    roles = argument_roles(forward)
    block = forward.body.block
    given: set[SSAValue] = {
        arg
        for arg, role in zip(block.args, roles, strict=True)
        if role in ("parameter", "constant")
    }
    found: set[Operation] = set()
    for op in block.ops:
        if isinstance(op, CallOp | ReturnOp) or not all(
            v in given for v in op.operands
        ):
            continue
        given.update(op.results)
        found.add(op)
    return found


def _first_uses(
    block: Block, body: Block, prepared: set[Operation]
) -> dict[SSAValue, Operation]:
    """
    Returns the values of the forward `block` that its backward `body` needs. The entry
    of a value is the first op of `body` that needs it. The backward body uses a value
    directly, or needs it to recompute the results of `prepared` ops.
    """
    place = {op: i for i, op in enumerate(body.ops)}
    found: dict[SSAValue, Operation] = {}
    for op in body.ops:
        for value in op.operands:
            if _block_of(value) is block:
                found.setdefault(value, op)
    for op in reversed(list(block.ops)):
        used = [r for r in op.results if r in found]
        if op in prepared and used:
            first = min((found[r] for r in used), key=place.__getitem__)
            found |= dict.fromkeys(used, first)
            for value in op.operands:
                before = found.get(value, first)
                found[value] = min(first, before, key=place.__getitem__)
    return found


def split_residuals(forward: FuncOp, body: Block) -> Saved:
    """
    Makes a backward `body` independent of the values of its forward function, and
    returns the values that `body` takes as arguments. Constants, and values computed
    from parameters alone, are recomputed, each right before its first use. All other
    values become arguments of the backward body, in front of the gradients.
    """
    block = forward.body.block
    saved = Saved()
    prepared = _prepared(forward)
    needed = _first_uses(block, body, prepared)
    replaced: dict[SSAValue, SSAValue] = {}
    count = 0

    def argument(value: SSAValue) -> None:
        nonlocal count
        replaced[value] = body.insert_arg(value.type, count)
        replaced[value].name_hint = value.name_hint
        count += 1

    for arg in block.args:
        if arg in needed:
            saved.arguments[arg] = arg.index
            argument(arg)
    for op in block.ops:
        used = [r for r in op.results if r in needed]
        if used and op in prepared:
            copy = op.clone({v: replaced[v] for v in op.operands})
            body.insert_op_before(copy, needed[used[0]])
            replaced |= zip(op.results, copy.results, strict=True)
            continue
        for result in used:
            saved.others.append(result)
            argument(result)
    for op in body.ops:
        for i, value in enumerate(op.operands):
            if value in replaced:
                op.operands[i] = replaced[value]
    return saved


def _block_of(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent_block()


def recomputed(op: Operation, known: Mapping[SSAValue, SSAValue]) -> Operation:
    """
    Returns a copy of an op of a forward pass, for use in the backward pass. `known`
    maps values of the forward pass to values of the backward pass. The copy has the
    attribute `dist.recomputed` if it is a call or has floating-point operations.
    """
    copy = op.clone({v: known[v] for v in op.operands if v in known})
    if isinstance(op, CallOp) or rule_for(op).flops:
        copy.attributes[RECOMPUTED] = UnitAttr()
    return copy


def recompute_marked(ops: Sequence[Operation], body: Block) -> None:
    """
    Makes a backward `body` recompute the results of forward ops that have the attribute
    `dist.recompute`, and removes the attribute. `ops` are the ops of the forward pass,
    whose values `body` still uses. After the change, `body` uses the operands of the
    recomputed ops.
    """
    marked = {
        op for op in ops if RECOMPUTE in op.attributes and not isinstance(op, CallOp)
    }
    if not marked or body.first_op is None:
        return
    for op in marked:
        del op.attributes[RECOMPUTE]
    first, known = body.first_op, dict[SSAValue, SSAValue]()
    used = {value for op in body.ops for value in op.operands}
    wanted: set[Operation] = set()
    for op in reversed(ops):
        if op in marked and any(result in used for result in op.results):
            wanted.add(op)
            used.update(op.operands)
    backward = list(body.ops)
    for op in ops:
        if op in wanted:
            copy = recomputed(op, known)
            body.insert_op_before(copy, first)
            known.update(zip(op.results, copy.results, strict=True))
    for op in backward:
        op.operands = [known.get(value, value) for value in op.operands]


STATISTIC = "train.statistic"
"""
The attribute of a function's result that is kept for later steps and that no loss
depends on, such as a running statistic.
"""


@dataclass
class Pair:
    """
    The forward and the backward function of a function.

    - `saved`: the first arguments of the backward function: arguments and results of the
      forward function, by index; the residuals are the last results of the forward
      function;
    - `results`: the forward function's results whose gradients are the next arguments of
      the backward function, by index;
    - `arguments`: the arguments whose gradients the backward function returns, by index.
    """

    forward: FuncOp
    backward: FuncOp
    saved: list[tuple[str, int]]
    results: list[int]
    arguments: list[int]


Key = tuple[str, tuple[int, ...]]
"""A function's name, and the indices of the arguments that need gradients."""


class ReverseMode:
    """
    Differentiates the functions of one module. Each pair of a forward and a backward
    function is made once.
    """

    def __init__(self, module: ModuleOp, types: GradientTypes):
        self.module = module
        self.types = types
        self.functions = functions(module)
        self.pairs: dict[Key, Pair] = {}
        self.kernels = KernelGradients(module, self.active, self._through_reference)

    def pair(self, name: str, arguments: Sequence[int]) -> Pair:
        """
        Returns the forward and the backward function of the function `name`. The
        backward function returns the gradients of the arguments at the indices
        `arguments`. Raises DistIRError if there is no function `name`.
        """
        key = (name, tuple(arguments))
        if key not in self.pairs:
            if name not in self.functions:
                raise DistIRError(f"differentiate: there is no function @{name}")
            self.pairs[key] = self._make_pair(self.functions[name], key)
        return self.pairs[key]

    def active(self, block: Block, sources: Sequence[SSAValue]) -> dict[SSAValue, None]:
        """
        Returns the values of `block` that depend differentiably on `sources`, in
        program order.
        """
        found: dict[SSAValue, None] = {v: None for v in sources if is_differentiable(v)}
        for op in block.ops:
            if any(v in found for v in op.operands):
                found |= self._active_results(op)
        return found

    def _active_results(
        self, op: Operation, callee: FuncOp | None = None
    ) -> dict[SSAValue, None]:
        if STOP_GRADIENT in op.attributes:
            return {}
        if callee is None and isinstance(op, CallOp):
            callee = self.functions.get(op.callee.string_value())
        statistics = set[int]() if callee is None else _statistics(callee)
        return {
            r: None
            for i, r in enumerate(op.results)
            # Values that hold tensors (sequences) are active too. The op that takes a
            # tensor out needs a rule; if it has none, an error is raised, instead of a
            # gradient that silently ends there.
            if (is_differentiable(r) or not isinstance(r.type, TensorType))
            and i not in statistics
        }

    def with_forward_calls(
        self, block: Block, active: dict[SSAValue, None]
    ) -> dict[CallOp, Pair]:
        """
        Makes a body keep the values that gradients need: replaces each active op by its
        training form, if it has one, and each active call by a call of the forward
        function of its pair. Adds the results of the new ops to `active`, and returns
        the pair of each new call.
        """
        take_training_forms(block, active)
        pairs: dict[CallOp, Pair] = {}
        for op in list(block.ops):
            if not isinstance(op, CallOp):
                continue
            arguments = [i for i, v in enumerate(op.operands) if v in active]
            if not arguments:
                continue
            pair = self.pair(op.callee.string_value(), arguments)
            callee = self.functions[op.callee.string_value()]
            outputs = pair.forward.function_type.outputs.data
            call = replace_call(op, pair.forward.sym_name.data, op.operands, outputs)
            active |= self._active_results(call, callee)
            pairs[call] = pair
        return pairs

    def backward(
        self,
        ops: Sequence[Operation],
        active: Mapping[SSAValue, None],
        pairs: Mapping[CallOp, Pair],
        gradients: dict[SSAValue, SSAValue],
        insert: Callable[[Operation], None],
    ) -> None:
        """
        Builds the backward pass of the forward `ops`, from the last op to the first.
        `gradients` holds the gradients of the results; the gradients of all active
        values are added to `gradients`. `pairs` holds the pair of functions of each
        call. Raises DistIRError if an op has no gradient.
        """
        for op in reversed(ops):
            if not any(r in gradients for r in op.results):
                continue
            if not any(v in active for v in op.operands):
                continue
            if doubt := DOUBT.of(op.attributes):
                raise DistIRError(f"differentiate: {describe(op)}: {reason(doubt)}")
            scope = op.attributes.get(SCOPE)
            build = GradientBuilder(insert, scope, op.location)
            known = [gradients.get(r) for r in op.results]
            if isinstance(op, CallOp):
                found = self._through_call(op, pairs[op], known, build)
            elif isinstance(op, ConstrainOp):
                found = known
            elif isinstance(op, KernelCallOp):
                wanted = [i for i, v in enumerate(op.operands) if v in active]
                assert known[0] is not None
                found = self.kernels.through(op, wanted, known[0], build)
            else:
                if draws_random_numbers(op):
                    raise DistIRError(
                        f"{describe(op)} draws random numbers; the backward could not "
                        f"repeat them. Export the model with plain dropout (nn.Dropout), "
                        f"or without"
                    )
                found = gradients_of(op, known, build)
            for value, gradient in zip(op.operands, found, strict=True):
                if gradient is None or value not in active:
                    continue
                gradient = self.types.cast(gradient, value, build)
                before = gradients.get(value)
                if before is not None:
                    gradient = build.onnx("Add", before, gradient)
                gradients[value] = gradient

    def _through_reference(
        self,
        ops: Sequence[Operation],
        active: dict[SSAValue, None],
        gradients: dict[SSAValue, SSAValue],
        block: Block,
    ) -> None:
        self.backward(ops, active, {}, gradients, block.add_op)

    def _through_call(
        self,
        op: CallOp,
        pair: Pair,
        gradients: Sequence[SSAValue | None],
        build: GradientBuilder,
    ) -> list[SSAValue | None]:
        operands = [
            op.operands[i] if kind == "argument" else op.results[i]
            for kind, i in pair.saved
        ]
        operands += [
            gradients[i] or self.types.zeros(op.results[i], build) for i in pair.results
        ]
        call = CallOp(
            pair.backward.sym_name.data,
            operands,
            pair.backward.function_type.outputs.data,
        )
        build.add(call)
        found: list[SSAValue | None] = [None] * len(op.operands)
        for i, gradient in zip(pair.arguments, call.results, strict=True):
            found[i] = gradient
        return found

    def _make_pair(self, function: FuncOp, key: Key) -> Pair:
        name, arguments = key
        forward = function.clone()
        block = forward.body.block
        active = self.active(block, [block.args[i] for i in arguments])
        pairs = self.with_forward_calls(block, active)
        ops = [op for op in block.ops if not isinstance(op, ReturnOp)]
        returned = return_op(forward)
        statistics = _statistics(function)
        results = [
            i
            for i, v in enumerate(returned.operands)
            if v in active and i not in statistics
        ]
        body = Block()
        gradients: dict[SSAValue, SSAValue] = {}
        given = [body.insert_arg(returned.operands[i].type, 0) for i in results[::-1]]
        for i, gradient in zip(results, reversed(given), strict=True):
            gradient.name_hint = "gradient"
            value = returned.operands[i]
            before = gradients.get(value)
            if before is not None:
                gradient = GradientBuilder(body.add_op, None).onnx(
                    "Add", before, gradient
                )
            gradients[value] = gradient
        self.backward(ops, active, pairs, gradients, body.add_op)
        # A missing gradient is not a zero one: optimizers skip parameters without one.
        reached = [i for i in arguments if block.args[i] in gradients]
        body.add_op(ReturnOp(*(gradients[block.args[i]] for i in reached)))
        erase_dead(body)
        recompute_marked(ops, body)
        saved = split_residuals(forward, body)
        self._name(forward, f"{name}_forward")
        outputs = list(dict.fromkeys([*returned.operands, *saved.others]))
        # A function may return a value twice; its residuals come after all of them.
        outputs = [
            *returned.operands,
            *outputs[len(dict.fromkeys(returned.operands)) :],
        ]
        set_results(forward, outputs)
        backward = self._backward_function(forward, body, saved, f"{name}_backward")
        order: list[tuple[str, int]] = [
            ("argument", i) for i in saved.arguments.values()
        ]
        order += [("result", outputs.index(value)) for value in saved.others]
        describe_backward(backward, forward, order)
        return Pair(forward, backward, order, results, reached)

    def _backward_function(
        self, forward: FuncOp, body: Block, saved: Saved, name: str
    ) -> FuncOp:
        last = body.last_op
        assert isinstance(last, ReturnOp)
        attributes = argument_attributes(forward)
        kept = [attributes[i] for i in saved.arguments.values()]
        kept += [{} for _ in range(len(body.args) - len(kept))]
        function = FuncOp(
            name,
            (body.arg_types, last.operand_types),
            Region(body),
            "private",
            arg_attrs=ArrayAttr([DictionaryAttr(a) for a in kept]),
        )
        if COMPILED in forward.attributes:
            function.attributes[COMPILED] = forward.attributes[COMPILED]
        self._name(function, name)
        return function

    def _name(self, function: FuncOp, name: str) -> None:
        function.properties["sym_name"] = StringAttr(unique_name(self.module, name))
        self.module.body.block.add_op(function)


def _statistics(function: FuncOp) -> set[int]:
    """
    Returns the indices of the results of a function through which no gradient flows
    back, because they are statistics.
    """
    return {i for i, own in enumerate(result_attributes(function)) if STATISTIC in own}
