"""
Divides backward calls in two: the first call computes gradients of inputs, the second
gradients of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import COMPILED, KEPT
from distir.program import ancestors, functions, return_op, unique_name
from distir.sharding.placement import PartialPlacement
from distir.transforms.pipelines.over_time import over_time


@dataclass(frozen=True)
class Half:
    """
    One of the two functions into which a function is divided. `arguments` and `results`
    are the values of the original function that the half takes and returns.
    """

    name: str
    arguments: Sequence[SSAValue]
    results: Sequence[SSAValue]


@dataclass
class CallSplitter:
    """
    Splits calls of functions that compute both gradients of weights and other results.
    Gradients of weights are the results that are partial over micro-batches. One new
    function computes the other results. A second new function then computes the
    gradients of weights. A zero-bubble schedule can delay the second call, and layers
    remain functions.
    """

    module: ModuleOp
    _halves: dict[str, tuple[Half, Half] | None] = field(
        default_factory=dict[str, tuple[Half, Half] | None]
    )

    def split(self, calls: Iterable[Operation]) -> bool:
        """
        Splits each call in `calls` that computes both gradients of weights and other
        results. Returns whether any call was split.
        """
        found = [op for op in calls if isinstance(op, CallOp) and self._split(op)]
        return bool(found)

    def _split(self, call: CallOp) -> bool:
        partial = [isinstance(over_time(r), PartialPlacement) for r in call.results]
        if all(partial) or not any(partial):
            return False
        name = call.callee.string_value()
        if name not in self._halves:
            self._halves[name] = self._split_function(functions(self.module)[name])
        halves = self._halves[name]
        if halves is None:
            return False
        callee = functions(self.module)[name]
        values: dict[SSAValue, SSAValue] = dict(
            zip(callee.body.block.args, call.arguments, strict=True)
        )
        for half in halves:
            new = CallOp(
                half.name,
                [values[v] for v in half.arguments],
                [v.type for v in half.results],
            )
            new.attributes.update(call.attributes)
            Rewriter.insert_op(new, InsertPoint.before(call))
            values.update(zip(half.results, new.results, strict=True))
        for old, source in zip(call.results, return_op(callee).operands, strict=True):
            values[source].name_hint = old.name_hint
            old.replace_all_uses_with(values[source])
        Rewriter.erase_op(call)
        return True

    def _split_function(self, function: FuncOp) -> tuple[Half, Half] | None:
        """Returns the halves of a function, or None if one half would have no ops."""
        block = function.body.block
        self.split(list(block.ops))
        returned = list(dict.fromkeys(return_op(function).operands))
        kept = [r for op in block.ops if KEPT in op.attributes for r in op.results]
        passed_on = [
            v for v in returned if not isinstance(over_time(v), PartialPlacement)
        ]
        early = ancestors([*passed_on, *kept])
        late = ancestors(returned) - early
        first = [op for op in block.ops if op in early]
        second = [op for op in block.ops if op in late]
        if not first or not second:
            return None
        # Constants are cheaper to compute twice than to keep.
        again = {
            op
            for op in first
            if op.name == "onnx.Constant"
            and any(u.operation in late for u in op.results[0].uses)
        }
        second = [op for op in block.ops if op in late or op in again]
        passed = list(
            dict.fromkeys(
                v
                for op in second
                for v in op.operands
                if v.owner in early and v.owner not in again
            )
        )
        made_first = [v for v in returned if v.owner not in late]
        name = function.sym_name.data
        return (
            self._half(function, f"{name}_input", first, [*made_first, *passed]),
            self._half(
                function,
                f"{name}_weight",
                second,
                [v for v in returned if v.owner in late],
            ),
        )

    def _half(
        self,
        function: FuncOp,
        name: str,
        ops: Sequence[Operation],
        results: Sequence[SSAValue],
    ) -> Half:
        """
        Adds a function that consists of `ops`, some of the ops of `function`, and
        returns its description. The new function returns `results`, values of
        `function`.
        """
        own = set(ops)
        results = list(dict.fromkeys(results))
        needed = dict.fromkeys(v for op in ops for v in op.operands)
        needed |= dict.fromkeys(results)
        arguments = [v for v in needed if v.owner not in own]
        block = Block(arg_types=[v.type for v in arguments])
        values: dict[SSAValue, SSAValue] = dict(zip(arguments, block.args, strict=True))
        for old, new in values.items():
            new.name_hint = old.name_hint
        for op in ops:
            block.add_op(op.clone(values))
        block.add_op(ReturnOp(*(values[v] for v in results)))
        name = unique_name(self.module, name)
        half = FuncOp(
            name,
            FunctionType.from_lists(
                [v.type for v in arguments], [v.type for v in results]
            ),
            Region(block),
            StringAttr("private"),
        )
        if COMPILED in function.attributes:
            half.attributes[COMPILED] = function.attributes[COMPILED]
        Rewriter.insert_op(half, InsertPoint.before(function))
        return Half(name, arguments, results)
