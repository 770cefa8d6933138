"""
Bundles values that the same calls pass on into one value: a list that a function
returns or takes.

Each tensor that a layer's forward function saves for its backward function is a
separate result and argument. If the same calls take all these tensors, the forward
function packs them once, and the backward function unpacks them. Functions in between
pass on one value.

The caller of a Python function holds its arguments until the function returns.
Therefore the callee empties a bundle that has no use after the call. Thus a layer's
backward function frees the saved tensors one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from xdsl.dialects.builtin import ModuleOp, TupleType, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.torch import SAVED, PackOp, UnpackOp, tuple_of
from distir.program import (
    argument_attributes,
    called,
    functions,
    name_hint,
    reachable_functions,
    return_op,
    set_argument_attributes,
    set_results,
)


def _unpack(bundle: SSAValue, hints: Sequence[str]) -> UnpackOp:
    op = UnpackOp(bundle)
    for result, hint in zip(op.outputs, hints, strict=True):
        result.name_hint = name_hint(hint)
    return op


def _hint(value: SSAValue) -> str:
    """Returns a name hint for a value that is passed on to another function."""
    if value.name_hint or not isinstance(value.owner, Operation):
        return value.name_hint or "x"
    return value.owner.name.rpartition(".")[2].lower()


def pack_saved_tensors(module: ModuleOp) -> None:
    """
    Bundles values that the same calls pass on between the functions of a per-rank
    program.
    """
    *called_functions, entry = reachable_functions(module)
    calls: dict[FuncOp, list[CallOp]] = {function: [] for function in called_functions}
    known = functions(module)
    for function in (*called_functions, entry):
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                calls[known[op.callee.string_value()]].append(op)
    changed = True
    while changed:
        changed = False
        for function in called_functions:
            each = _Interface(function, calls)
            changed |= each.bundle_results() or each.return_bundle()
            changed |= each.bundle_arguments() or each.take_bundle()


class _Interface:
    """The arguments and results of a function, with all calls of it."""

    def __init__(self, function: FuncOp, every: dict[FuncOp, list[CallOp]]):
        self.function = function
        self.every = every
        self.calls = every[function]

    # Results

    def bundle_results(self) -> bool:
        """
        Packs results that go to the same calls into one bundle, and returns whether
        there were such results. It is enough if the results go to the same calls at
        more than half of the function's call sites.
        """

        def key(index: int) -> Hashable:
            return _most([self._users(c.results[index]) for c in self.calls])

        count = len(self.function.function_type.outputs)
        group = _largest_group(count, key)
        if group:
            returned = return_op(self.function)
            values = [returned.operands[i] for i in group]
            pack = PackOp(values)
            Rewriter.insert_op(pack, InsertPoint.before(returned))
            self._return(group, pack.output, [_hint(v) for v in values])
        return bool(group)

    def return_bundle(self) -> bool:
        """
        If the function unpacks a bundle and returns all its values, makes it return the
        bundle instead. Returns whether there was such a bundle.
        """
        returned = return_op(self.function)
        for op in self.function.body.block.ops:
            if not isinstance(op, UnpackOp):
                continue
            uses = [list(result.uses) for result in op.outputs]
            if all(len(u) == 1 and u[0].operation is returned for u in uses):
                hints = [_hint(v) for v in op.outputs]
                self._return([u[0].index for u in uses], op.input, hints)
                self.function.body.block.erase_op(op)
                return True
        return False

    def _return(
        self, group: Sequence[int], value: SSAValue, hints: Sequence[str]
    ) -> None:
        """
        Makes the function return the bundle `value` in place of the results with the
        indices `group`, and its callers unpack the bundle. `hints` are names for the
        unpacked values.
        """
        operands = list(return_op(self.function).operands)
        places = _places(len(operands), group)
        new = [value if i is None else operands[i] for i in places]
        set_results(self.function, new)
        types = [v.type for v in new]
        for i, call in enumerate(self.calls):
            self.calls[i] = made = called(
                call, call.callee.string_value(), call.operands, types
            )
            Rewriter.insert_op(made, InsertPoint.before(call))
            (at,) = (j for j, place in enumerate(places) if place is None)
            made.results[at].name_hint = SAVED
            unpack = _unpack(made.results[at], hints)
            Rewriter.insert_op(unpack, InsertPoint.before(call))
            found = dict(zip(group, unpack.outputs, strict=True))
            for j, place in enumerate(places):
                if place is not None:
                    made.results[j].name_hint = call.results[place].name_hint
                    found[place] = made.results[j]
            Rewriter.replace_op(call, [], [found[k] for k in range(len(operands))])
            _cancel(unpack)

    def _users(self, value: SSAValue) -> Hashable:
        """
        Returns a key for the calls that use a value, or None if another op uses the
        value, or if one op uses it twice.
        """
        found: dict[Operation, Hashable] = {}
        for use in value.uses:
            op = use.operation
            function = op.parent_op()
            if op in found:
                return None
            if isinstance(op, ReturnOp) and isinstance(function, FuncOp):
                if function not in self.every:
                    return None
                calls = self.every[function]
                found[op] = tuple(self._users(c.results[use.index]) for c in calls)
            elif isinstance(op, CallOp | PackOp):
                found[op] = None
            else:
                return None
        return frozenset(found.items()) or None

    # Arguments

    def _origin(self, value: SSAValue) -> Hashable:
        """
        Returns a key for the origin of a value and for its uses. The origin is a call,
        an unpacked bundle, or the operands of the function's callers for an argument.
        Returns None for other values, and for values with uses other than calls.
        """
        users = self._users(value)
        if users is None or isinstance(value.owner, CallOp | UnpackOp):
            return users and (value.owner, users)
        function = value.owner.parent_op()
        if (
            isinstance(value, BlockArgument)
            and isinstance(function, FuncOp)
            and function in self.every
        ):
            given = [c.operands[value.index] for c in self.every[function]]
            origin = _most([self._origin(v) for v in given])
            return origin and (function, origin, users)
        return None

    def bundle_arguments(self) -> bool:
        """
        Packs arguments that come from the same call into one bundle, and returns
        whether there were such arguments. It is enough if the arguments come from the
        same call at more than half of the function's call sites.
        """

        def key(index: int) -> Hashable:
            return _most([self._origin(c.operands[index]) for c in self.calls])

        def order(index: int) -> int:  # in the order in which they are computed
            values = [c.operands[index] for c in self.calls]
            found = next(v for v in values if self._origin(v) is not None)
            assert isinstance(found, OpResult | BlockArgument)
            return found.index

        group = sorted(_largest_group(len(self.function.args), key), key=order)
        if group:
            block = self.function.body.block
            given = [block.args[i] for i in group]
            bundle = block.insert_arg(tuple_of(given), len(block.args))
            first = [self.calls[0].operands[i] for i in group]
            unpack = _unpack(bundle, [_hint(v) for v in first])
            assert block.first_op is not None
            Rewriter.insert_op(unpack, InsertPoint.before(block.first_op))
            for old, new in zip(given, unpack.outputs, strict=True):
                old.replace_all_uses_with(new)
            self._take(group, bundle)
        return bool(group)

    def take_bundle(self) -> bool:
        """
        If the function packs arguments that have no other use into a bundle, makes it
        take the bundle as one argument. Returns whether there was such a bundle.
        """
        block = self.function.body.block
        for op in block.ops:
            if not isinstance(op, PackOp):
                continue
            given = [v for v in op.inputs if isinstance(v, BlockArgument)]
            if len(given) == len(op.inputs) and all(
                len(list(v.uses)) == 1 for v in given
            ):
                bundle = block.insert_arg(op.output.type, len(block.args))
                op.output.replace_all_uses_with(bundle)
                group = [v.index for v in given]
                block.erase_op(op)
                self._take(group, bundle)
                return True
        return False

    def _take(self, group: Sequence[int], bundle: BlockArgument) -> None:
        """
        Makes the function take `bundle`, its last argument, in place of the arguments
        with the indices `group`, and its callers pack the bundle.
        """
        block = self.function.body.block
        bundle.name_hint = SAVED
        attributes = [*argument_attributes(self.function), {}]
        kept = [i for i in range(len(attributes)) if i not in group]
        for index in sorted(group, reverse=True):
            block.erase_arg(block.args[index])
        self.function.update_function_type()
        set_argument_attributes(self.function, [attributes[i] for i in kept])
        for i, call in enumerate(self.calls):
            pack = PackOp([call.operands[g] for g in group])
            Rewriter.insert_op(pack, InsertPoint.before(call))
            operands = [call.operands[k] for k in kept[:-1]]
            types = [r.type for r in call.results]
            name = call.callee.string_value()
            self.calls[i] = made = called(call, name, [*operands, pack.output], types)
            for new, old in zip(made.results, call.results, strict=True):
                new.name_hint = old.name_hint
            Rewriter.replace_op(call, made)
            _cancel(pack)


def _places(count: int, group: Sequence[int]) -> list[int | None]:
    """
    Returns the positions of `count` values after the values `group` have become one
    bundle: the old position of each, or None for the bundle.
    """
    found: list[int | None] = []
    for index in range(count):
        if index == min(group):
            found.append(None)
        elif index not in group:
            found.append(index)
    return found


def _largest_group(count: int, key: Callable[[int], Hashable]) -> list[int]:
    """
    Returns the largest set of positions with equal keys, or an empty list if it has
    fewer than two. Positions with the key None belong to no set.
    """
    groups: dict[Hashable, list[int]] = {}
    for index in range(count):
        if (own := key(index)) is not None:
            groups.setdefault(own, []).append(index)
    largest = max(groups.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def _most(keys: list[Hashable]) -> Hashable:
    """
    Returns the keys at all calls as one key, or None if at least half of them are None.
    """
    return tuple(keys) if 2 * keys.count(None) < len(keys) else None


def _cancel(op: PackOp | UnpackOp) -> None:
    """
    Removes a `torch.pack` of exactly the results of a `torch.unpack`: `op` itself, or
    the packs of the results of `op`. Also removes the `torch.unpack` if its results
    have no other use.
    """
    if isinstance(op, UnpackOp):
        packs = {use.operation for use in op.outputs[0].uses}
        for pack in packs:
            if isinstance(pack, PackOp):
                _cancel(pack)
        return
    unpack = op.inputs[0].owner
    if isinstance(unpack, UnpackOp) and list(unpack.outputs) == list(op.inputs):
        op.output.replace_all_uses_with(unpack.input)
        Rewriter.erase_op(op)
        if not any(list(result.uses) for result in unpack.outputs):
            Rewriter.erase_op(unpack)


def release_saved_tensors(module: ModuleOp) -> None:
    """
    Marks every `torch.unpack` of a bundle that no caller uses again, so that the bundle
    is emptied.
    """
    ownership = _Ownership(module)
    for function in ownership.functions:
        for op in function.body.block.ops:
            if (
                isinstance(op, UnpackOp)
                and isinstance(op.input, BlockArgument)
                and op.input not in ownership.borrowed
                and len(list(op.input.uses)) == 1
            ):
                op.properties["releases"] = UnitAttr()


class _Ownership:
    """
    Determines which bundles of a program other functions may still use.

    `borrowed` are the bundles that a function must not empty, because other functions
    may use them later. The set is computed as a fixed point, from the empty set.
    `escaping` are the arguments that a function returns or puts into another bundle.
    """

    def __init__(self, module: ModuleOp):
        self.functions = reachable_functions(module)  # callees first
        self.known = functions(module)
        self.places: dict[Operation, int] = {}
        self.escaping: set[SSAValue] = set()
        for function in self.functions:
            self.places.update({op: i for i, op in enumerate(function.body.block.ops)})
            self.escaping |= set(filter(self._escapes, function.args))
        self.borrowed: set[SSAValue] = set()
        changed = True
        while changed:
            found = {v for f in self.functions for v in self._found(f)}
            changed = not found <= self.borrowed
            self.borrowed |= found

    def _escapes(self, bundle: SSAValue) -> bool:
        return _is_bundle(bundle) and any(
            self._keeps(use.operation, bundle) for use in bundle.uses
        )

    def _keeps(self, user: Operation, bundle: SSAValue) -> bool:
        """
        Whether `user`, an op that uses a bundle, makes the bundle reachable from
        another value.
        """
        if isinstance(user, CallOp):
            given = zip(user.operands, self._callee(user).args, strict=True)
            return any(v is bundle and a in self.escaping for v, a in given)
        return not isinstance(user, UnpackOp)

    def _callee(self, call: CallOp) -> FuncOp:
        return self.known[call.callee.string_value()]

    def _found(self, function: FuncOp) -> Iterator[SSAValue]:
        """
        Yields the bundles that, because of an op of the function, other functions may
        use later.
        """
        for op in function.body.block.ops:
            if isinstance(op, UnpackOp):
                yield from filter(_is_bundle, op.outputs)
            elif isinstance(op, CallOp):
                callee = self._callee(op)
                for operand, argument in zip(op.operands, callee.args, strict=True):
                    if _is_bundle(operand) and not self._gives_away(op, operand):
                        yield argument
                returned = return_op(callee).operands
                for result, value in zip(op.results, returned, strict=True):
                    if _is_bundle(value) and not self._is_given_back(value):
                        yield result

    def _gives_away(self, call: CallOp, bundle: SSAValue) -> bool:
        """Whether a bundle has no use after `call`."""
        users = [use.operation for use in bundle.uses]
        others = [op for op in users if op is not call]
        return (
            bundle not in self.borrowed
            and len(users) == len(others) + 1
            and all(self.places[op] < self.places[call] for op in others)
            and not any(self._keeps(op, bundle) for op in others)
        )

    def _is_given_back(self, value: SSAValue) -> bool:
        """
        Whether only the caller can use the bundle `value` after a function has returned
        it.
        """
        users = [use.operation for use in value.uses]
        others = [op for op in users if not isinstance(op, ReturnOp)]
        return (
            value not in self.borrowed
            and len(users) == len(others) + 1
            and not any(self._keeps(op, value) for op in others)
        )


def _is_bundle(value: SSAValue) -> bool:
    return isinstance(value.type, TupleType)
