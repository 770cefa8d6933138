"""Writes a choice of layouts onto a sequential program, for `partition`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import (
    LAYOUT,
    OPERAND_LAYOUTS,
    RESULT_LAYOUTS,
    SCOPE,
    ConstrainOp,
    Layout,
    LayoutAttr,
)
from distir.planning.layouts.graph import (
    Body,
    Node,
    Port,
)
from distir.planning.layouts.strategies import (
    Strategy,
)
from distir.program import (
    argument_attributes,
    return_op,
    set_argument_attributes,
    unique_name,
    updated_arguments,
)
from distir.sharding.decompose import decompose, equal_before

Chosen = Mapping[Node, Strategy]


def annotate(module: ModuleOp, entry: Body, chosen: Chosen) -> None:
    """
    Gives every op and argument that the entry reaches the layouts that were chosen.
    Functions whose calls differ in them are cloned; ops whose decomposition was chosen are
    decomposed; values that are kept in another layout than they are computed in are
    constrained to it.
    """
    _Annotator(module, chosen).run(entry)


def _request(op: Operation, operands: Sequence[Layout], results: Sequence[Layout]):
    for name, layouts in ((OPERAND_LAYOUTS, operands), (RESULT_LAYOUTS, results)):
        if layouts:
            op.attributes[name] = ArrayAttr([LayoutAttr(x) for x in layouts])


@dataclass(frozen=True)
class _Copy:
    """
    A function for one body: the copies of the original ops, and of the values that are kept
    in a layout.
    """

    body: Body
    function: FuncOp
    ops: Mapping[Operation, Operation]
    kept: Sequence[tuple[SSAValue, Node]]


class _Annotator:
    def __init__(self, module: ModuleOp, chosen: Chosen):
        self.module = module
        self.chosen = chosen
        self._signatures: dict[Body, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._copies: dict[int, _Copy] = {}
        self._used: set[FuncOp] = set()

    def run(self, entry: Body) -> None:
        """Copies are made before anything is changed."""
        self._signature(entry)
        for copy in self._copies.values():
            self._annotate(copy)

    def _signature(self, body: Body) -> int:
        """A number that bodies have in common that do the same; makes their function."""
        if body in self._signatures:
            return self._signatures[body]
        callees = tuple(self._signature(callee) for callee in body.calls.values())
        nodes = (*body.arguments, *body.ops.values(), *body.kept.values())
        strategies = tuple(
            (s.operands, s.results, s.parts)
            for s in (self.chosen[node] for node in nodes)
        )
        key = (body.function.sym_name.data, callees, strategies)
        number = self._numbers.setdefault(key, len(self._numbers))
        self._signatures[body] = number
        if number not in self._copies:
            self._copies[number] = self._copy(body)
        return number

    def _function(self, original: FuncOp) -> FuncOp:
        if original not in self._used:
            self._used.add(original)
            return original
        clone = original.clone()
        name = unique_name(self.module, original.sym_name.data)
        clone.properties["sym_name"] = StringAttr(name)
        Rewriter.insert_op(clone, InsertPoint.after(original))
        return clone

    def _copy(self, body: Body) -> _Copy:
        function = self._function(body.function)
        pairs = zip(body.function.body.block.ops, function.body.block.ops, strict=True)
        ops = dict(pairs)
        kept = [
            (ops[value.op].results[value.index], node)
            for value, node in body.kept.items()
            if isinstance(value, OpResult)
        ]
        return _Copy(body, function, ops, kept)

    def _layout(self, port: Port) -> Layout:
        return self.chosen[port.node].results[port.result]

    def _annotate(self, copy: _Copy) -> None:
        body, function = copy.body, copy.function
        attributes = argument_attributes(function)
        for entry, node in zip(attributes, body.arguments, strict=True):
            entry[LAYOUT] = LayoutAttr(self.chosen[node].results[0])
        set_argument_attributes(function, attributes)
        self._return(function, body)
        for original, callee in body.calls.items():
            self._call(copy.ops[original], callee)
        values: dict[SSAValue, SSAValue] = {}
        for original, node in body.ops.items():
            op, strategy = copy.ops[original], self.chosen[node]
            if strategy.parts:
                values[op.results[0]] = self._decompose(op, strategy)
            else:
                _request(op, strategy.operands, strategy.results)
        for value, node in copy.kept:
            self._keep(values.get(value, value), self.chosen[node].results[0])

    def _return(self, function: FuncOp, body: Body) -> None:
        returned = return_op(function)
        if body.results:
            _request(returned, [self._layout(port) for port in body.results], [])
            return
        updates = updated_arguments(function)
        layouts = [
            self.chosen[
                body.arguments[updates[i]] if i in updates else body.sinks[i]
            ].results[0]
            for i in range(len(returned.operands))
        ]
        _request(returned, layouts, [])

    def _call(self, call: Operation, callee: Body) -> None:
        assert isinstance(call, CallOp)
        function = self._copies[self._signatures[callee]].function
        call.properties["callee"] = SymbolRefAttr(function.sym_name)
        arguments = [self.chosen[node].results[0] for node in callee.arguments]
        _request(call, arguments, [self._layout(port) for port in callee.results])

    def _decompose(self, op: Operation, strategy: Strategy) -> SSAValue:
        parts = decompose(op)
        assert parts is not None
        for part, layouts in zip(parts, strategy.parts, strict=True):
            _request(part, layouts.operands, layouts.results)
        Rewriter.replace_op(op, parts)
        for part in parts[:-1]:
            same = equal_before(part)
            if same is not None:
                Rewriter.replace_op(part, [], same.results)
        return parts[-1].results[0]

    def _keep(self, value: SSAValue, layout: Layout) -> None:
        """Brings a value to a layout where it is computed, for all that use it."""
        assert isinstance(value, OpResult)
        owner = value.op
        given = owner.attributes[RESULT_LAYOUTS]
        assert isinstance(given, ArrayAttr)
        if given.data[value.index] == LayoutAttr(layout):
            return
        constrain = ConstrainOp(value, layout)
        _request(constrain, [layout], [layout])
        if SCOPE in owner.attributes:
            constrain.attributes[SCOPE] = owner.attributes[SCOPE]
        Rewriter.insert_op(constrain, InsertPoint.after(owner))
        for use in list(value.uses):
            if use.operation is not constrain:
                use.operation.operands[use.index] = constrain.result
