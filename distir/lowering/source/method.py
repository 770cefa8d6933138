"""Writes one method from a function of a per-rank program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.base import REPEAT
from distir.dialects.dist_attributes import COMPILED, NAME
from distir.dialects.schedule import CUDA_GRAPH
from distir.dialects.torch import AwaitGradientsOp, Overwriting, PackOp, UnpackOp
from distir.lowering.emitter import Call, emitter_for
from distir.lowering.source.class_names import ClassNames
from distir.lowering.source.loop import Loop
from distir.lowering.source.method_names import Expression, Key, MethodNames, member
from distir.lowering.source.runs import CallRun, Statement, ValueList
from distir.lowering.source.text import WIDTH, broken, chained, comment, filled
from distir.program import argument_attributes, scope_of
from distir.program.locations import line_of

_LISTED_RESULTS = 8
"""
The largest number of results of an op that get a variable each. More results are kept
in a list.
"""


class Method:
    """
    Writes `function` as the method `name` of a class. `writer` gives the names in this
    class.
    """

    def __init__(self, writer: ClassNames, function: FuncOp, name: str):
        self.writer, self.function, self.name = writer, function, name
        self.values = MethodNames(writer, function)
        self.names, self.plan = self.values.names, self.values.plan
        self.lines: list[str] = []
        # The line of the user's module, by the index of the first line that it is for.
        self.sources: dict[int, str] = {}
        self.indent = ""
        self.positions = writer.cls.positions[function]
        awaited = {
            int(i)
            for op in function.body.block.ops
            if isinstance(op, AwaitGradientsOp)
            for i in op.arguments.iter_values()
        }
        self.arguments = [
            a
            for i, a in enumerate(function.args)
            if i not in self.positions and i not in awaited
        ]
        # Lists that loops filled, and how many of their elements are still in them.
        self.left: dict[ValueList, int] = {}
        self.last_use: dict[Key, int] = {}
        for i, statement in enumerate(self.plan.statements):
            for key in self._needed(statement):
                self.last_use[key] = i

    # Values that statements need

    def _needed(self, statement: Statement) -> set[Key]:
        if not isinstance(statement, CallRun):
            return {self.values.key(v) for v in statement.operands}
        members = self.writer.program.passed_members[statement.calls[0]]
        found: set[Key] = set()
        for position, value in enumerate(statement.calls[0].operands):
            if position in statement.taken:
                found.add(statement.taken[position][0].source)
            elif position in statement.given:
                found |= {self.values.key(v) for v in statement.given[position]}
            elif position not in members:
                found.add(self.values.key(value))
        return found

    def _dying(self, at: int) -> list[Key]:
        """
        Returns the values whose last use is the statement with index `at`, and the
        results of this statement that are never used.
        """
        statement = self.plan.statements[at]
        keys = [k for k in self._needed_in_order(statement) if self.last_use[k] == at]
        if not isinstance(statement, CallRun):
            keys += [
                r for r in statement.results if self.values.key(r) not in self.last_use
            ]
        frees = not isinstance(self.plan.statements[at + 1], ReturnOp)
        return [
            k
            for k in keys
            if not isinstance(k, BlockArgument) or (frees and self._frees(k))
        ]

    def _frees(self, argument: BlockArgument) -> bool:
        """
        Whether the method deletes `argument` after its last use. True for tensors,
        because a caller may have given up its own reference. False in the entry
        function, because the caller of the program keeps the arguments.
        """
        return (
            self.function is not self.writer.program.entry
            and argument in self.arguments
            and isinstance(argument.type, TensorType)
        )

    def _needed_in_order(self, statement: Statement) -> list[Key]:
        needed = self._needed(statement)
        calls = statement.calls if isinstance(statement, CallRun) else [statement]
        keys = dict.fromkeys(self.values.key(v) for c in calls for v in c.operands)
        return [k for k in keys if k in needed] + [k for k in needed if k not in keys]

    # Text

    def text(self) -> list[str]:
        """Returns the lines of the method, from its decorator or `def` on."""
        attributes = argument_attributes(self.function)
        for i, argument in enumerate(self.function.args):
            if i in self.positions:
                path = self.writer.member_path(self.positions[i])
                self.values.expressions[argument] = member(path)
        for argument in self.arguments:
            hint = NAME.of(attributes[argument.index])
            name = self.names.fresh(hint or self.writer.hint(argument), "x")
            self.values.expressions[argument] = Expression(name)
            if self._frees(argument):
                self.values.variables[argument] = name
        parameters = [
            "self",
            *(str(self.values.expressions[a]) for a in self.arguments),
        ]
        header = broken(f"def {self.name}({', '.join(parameters)}):")
        if COMPILED.of(self.function.attributes) == "inductor":
            header = ["@torch.compile(dynamic=False)", *header]
        elif COMPILED.of(self.function.attributes) == CUDA_GRAPH:
            header = [f"@{self.writer.helper('graphs')}.captured", *header]
        scope = ""
        for at, statement in enumerate(self.plan.statements):
            first = statement.calls[0] if isinstance(statement, CallRun) else statement
            if scope_of(first) not in ("", scope) and not isinstance(
                statement, CallRun
            ):
                scope = scope_of(first)
                shown = self.writer.shown_scope(scope)
                if not shown and line_of(first.location):
                    shown = "self"  # the end of a part, for messages about a line
                if shown:
                    self.lines.append(f"# {comment(shown)}")
            if not isinstance(first, CallOp | ReturnOp | PackOp | UnpackOp):
                self.sources[len(self.lines)] = line_of(first.location)
            if isinstance(statement, CallRun):
                self._run(statement, at)
            else:
                self._op(statement, at)
        return [*header, *("    " + line for line in self._annotated())]

    def _annotated(self) -> list[str]:
        """
        Returns the lines of the body. Where the source line in the user's module
        changes, a line ends in a comment with this place: the file's name, in its
        folder, and the line.
        """
        lines, last = list(self.lines), ""
        for at, source in sorted(self.sources.items()):
            if source in ("", last) or at >= len(lines):
                continue
            last = source
            lines[at] += f"  # {comment('/'.join(source.split('/')[-2:]))}"
        return lines

    def _add(self, line: str) -> None:
        self.lines += broken(self.indent + line)

    def _op(self, op: Operation, at: int) -> None:
        if isinstance(op, ReturnOp):
            kept = [v for v in op.operands if v not in self.writer.overwritten]
            items = self.values.listed(kept)
            if len(items) == 1 and items[0].startswith("*"):
                items = [f"({items[0]},)"]
            line = f"return {', '.join(items)}".rstrip()
            wide = len(line) > WIDTH
            self.lines += broken(f"return ({', '.join(items)})") if wide else [line]
            return
        dying = self._dying(at)
        if isinstance(op, CallOp):
            dying = self._give_away(op, dying)
            self._take_from_lists(op, at)
        if isinstance(op, AwaitGradientsOp):
            dying = self._hand_out(op, dying)
        written = self._written(op)
        if _is_returned(op):
            self.values.expressions[op.results[0]] = Expression(str(written))
            return  # written with the `return`, behind which everything is gone
        overwritten = op.overwritten if isinstance(op, Overwriting) else {}
        if overwritten and len(overwritten) == len(op.results):
            self._add(str(written))
            dying = [k for k in dying if k not in op.results]
        elif isinstance(written, str):
            dying = self._assign(op, written, dying)
        else:
            names = [self.values.result(r) for r in op.results]
            for name, line in zip(names, written, strict=True):
                self._add(f"{name} = {line}")
        for result, operand in overwritten.items():
            self.values.expressions[result] = self.values.expressions[operand]
        if isinstance(op, UnpackOp) and op.releases is not None:
            self._add(f"{self.values.name(op.input)}.clear()")
        self._delete(dying)

    def _give_away(self, call: CallOp, dying: list[Key]) -> list[Key]:
        """
        Moves tensors into a list from which the call takes them, so that the called
        method can free them before it ends. The tensors have no later use in this
        method, and the called method does not need them until its end. Returns the
        values that must still be deleted after the call.
        """
        operands = list(call.operands)
        callee = self.writer.program.callee(call)
        given = [
            v
            for v, argument in zip(operands, callee.args, strict=True)
            if v in dying
            and v in self.values.variables
            and isinstance(v.type, TensorType)
            and operands.count(v) == 1
            and _is_freed(argument, callee)
        ]
        return self._move(given, dying)

    def _hand_out(self, op: AwaitGradientsOp, dying: list[Key]) -> list[Key]:
        """
        Moves results of the program that this method no longer needs into a list. The
        caller takes the results from this list, and is then the only holder of them.
        Returns the values that must still be deleted.
        """
        operands = list(op.operands)
        given = [
            v
            for v in operands
            if v in dying and v in self.values.variables and operands.count(v) == 1
        ]
        return self._move(given, dying)

    def _move(self, given: Sequence[SSAValue], dying: list[Key]) -> list[Key]:
        """
        Moves values from their variables into a list, from which the next expression
        takes them. Returns the values in `dying` that must still be deleted.
        """
        if not given:
            return dying
        name = self.names.fresh("given", "x")
        self._add(f"{name} = [{', '.join(self.values.listed(given))}]")
        self._delete(given)
        for value in given:
            self.values.expressions[value] = Expression(f"{name}.pop(0)")
        return [k for k in dying if k not in given]

    def _take_from_lists(self, call: CallOp, at: int) -> None:
        """
        Passes tensors to the call by `pop()` from the ends of the lists that hold them,
        so that the called method can free them before it ends. The tensors have no
        later use in this method, and the called method does not need them until its
        end.
        """
        if self.plan.lists.keys().isdisjoint(call.operands):
            return
        later = self.plan.statements[at + 1 :]
        runs = [s for s in later if isinstance(s, CallRun)]
        behind = {*later, *(c for run in runs for c in run.calls)}
        taken = {each.source for run in runs for each, _ in run.taken.values()}
        callee = self.writer.program.callee(call)
        for value, argument in zip(call.operands, callee.args, strict=True):
            source, index, part = self.plan.lists.get(value, (None, 0, None))
            if (
                source is None
                or source in taken
                or self.left.get(source) != index + 1
                or part is not None
                or not isinstance(value.type, TensorType)
                or any(use.operation in behind for use in value.uses)
                or list(call.operands).count(value) > 1
                or not _is_freed(argument, callee)
            ):
                continue
            self.left[source] = index
            self.values.expressions[value] = Expression(f"{source.name}.pop()")

    def _written(self, op: Operation) -> str | Sequence[str]:
        if isinstance(op, CallOp):
            passed = [
                str(self.values.expression(v))
                for i, v in enumerate(op.operands)
                if i not in self.writer.program.members_passed(op)
            ]
            return f"{self._callee(op)}({', '.join(passed)})"
        if isinstance(op, PackOp):
            return f"[{', '.join(self.values.listed(op.inputs))}]"
        if isinstance(op, UnpackOp):
            return self.values.name(op.input)
        if isinstance(op, AwaitGradientsOp):
            # Not listed: values popped from a list have to come in order.
            given = [self.values.name(value) for value in op.inputs]
            return f"yield [{', '.join(given)}]"
        return emitter_for(op)(Call(op, self.values))

    def _callee(self, op: CallOp) -> str:
        path = self.writer.child_path(op)
        start = "self" if path is None else str(member(path))
        return f"{start}.{self.writer.program.method_name(op)}"

    def _assign(self, op: Operation, written: str, dying: list[Key]) -> list[Key]:
        """
        Assigns the results of the expression `written` to variables. Returns the values
        that must still be deleted.
        """
        results = list(op.results)
        if not results:
            self._add(written)
            return dying
        if len(results) > _LISTED_RESULTS and not isinstance(
            op, UnpackOp | CallOp | AwaitGradientsOp
        ):
            return self._assign_list(op, written, dying)
        reused = self._reused(op, dying)
        if reused is not None:
            name = self.values.variables.pop(reused)
            self.values.bind(results[0], name)
            is_method = written.startswith(f"{name}.")
            if not (is_method and chained(self.lines, name, written)):
                self._add(f"{name} = {written}")
            return [k for k in dying if k is not reused]
        names = [self.values.result(r) for r in results]
        is_list = isinstance(op, UnpackOp | AwaitGradientsOp)
        comma = "," if is_list and len(names) == 1 else ""
        *first, last = filled(self.indent, names, f"{comma} = ")
        *rest, end = [*first, last + written] if first else [last + written]
        self.lines += [*rest, *broken(end)]
        return dying

    def _assign_list(self, op: Operation, written: str, dying: list[Key]) -> list[Key]:
        results = list(op.results)
        whole = ValueList([(r,) for r in results], results[0])
        whole.name = self.names.fresh(self.values.plural(results[0]), "values")
        uses = [self.last_use[r] for r in results if r in self.last_use]
        for i, result in enumerate(results):
            self.plan.lists[result] = whole, i, None
        if uses:
            self.last_use[whole] = max(uses)
        self._add(f"{whole.name} = {written}")
        return [k for k in dying if k not in results] + ([] if uses else [whole])

    def _reused(self, op: Operation, dying: Sequence[Key]) -> SSAValue | None:
        """
        Returns an operand whose variable the result of an op can take over, or None.
        Such an operand has no later use, and the result has no name.
        """
        if len(op.results) != 1 or op.results[0] in dying:
            return None
        if op.results[0].name_hint or isinstance(
            op, CallOp | PackOp | AwaitGradientsOp
        ):
            return None
        for key in dying:
            if isinstance(key, SSAValue) and key in self.values.variables:
                return key
        return None

    def _delete(self, dying: Iterable[Key], others: Sequence[str] = ()) -> None:
        """
        Adds a statement that deletes the variables of the values `dying`, and the
        variables named in `others`.
        """
        found = list(others)
        for key in dying:
            if isinstance(key, ValueList):
                if key not in self.values.popped:
                    found.append(key.name)
            elif key in self.values.variables:
                found.append(self.values.variables.pop(key))
        if found:
            self.lines += filled(self.indent + "del ", list(dict.fromkeys(found)))

    # Loops

    def _run(self, run: CallRun, at: int) -> None:
        dying = self._dying(at)
        variables = self._carry(run, dying)
        for source in [
            *run.inputs.values(),
            *([run.outputs[1]] if run.outputs else []),
        ]:
            source.name = self.names.fresh(self.values.plural(source.hint), "values")
            self.left[source] = len(source.items)
            self._add(f"{source.name} = []")
        loop = Loop(self.values, run, dying, variables)
        header, body = loop.header(), loop.body()
        for line in loop.prepared:
            self._add(line)
        self._delete(loop.released)
        dying = [k for k in dying if k not in loop.released]
        self._add(header)
        self.indent = "    "
        for line in body:
            self._add(line)
        self.indent = ""
        kept = [
            k for k in dying if self.values.variables.get(_value(k)) not in loop.kept
        ]
        for key in dying:
            if key not in kept:
                self.values.variables.pop(_value(key), None)
        for result, name in loop.results.items():
            self.values.bind(run.calls[-1].results[result], name)
        unused = [
            run.calls[-1].results[r]
            for r in loop.results
            if run.calls[-1].results[r] not in self.last_use
        ]
        self._delete([*kept, *unused], loop.temporary)

    def _carry(self, run: CallRun, dying: Sequence[Key]) -> dict[int, str]:
        """
        Returns the variables of the results that a loop carries from one iteration to
        the next, and assigns their first values.
        """
        found: dict[int, str] = {}
        for position, result in run.carried.items():
            if result in found:
                continue
            start = run.calls[0].operands[position]
            taken = self.values.variables.get(start) if start in dying else None
            if isinstance(start, BlockArgument) and start in self.arguments:
                at = self.plan.statements.index(run)
                if self.last_use[start] == at:
                    taken = str(self.values.expressions[start])
            if taken is None:
                hint = self.writer.hint(run.calls[0].results[result])
                taken = self.names.fresh(hint, "x")
                self._add(f"{taken} = {self.values.expression(start)}")
            found[result] = taken
        return found


def _is_freed(argument: BlockArgument, callee: FuncOp) -> bool:
    """
    Whether a method continues after its last use of `argument`, so that freeing the
    argument early saves memory. True for every outlined repeat, because a repeat is a
    part of its caller.
    """
    if REPEAT in callee.attributes:
        return True
    ops = list(callee.body.block.ops)
    uses = [i for i, op in enumerate(ops) if argument in op.operands]
    behind = ops[uses[-1] + 1 :] if uses else []
    return not all(isinstance(op, ReturnOp | PackOp) for op in behind)


def _is_returned(op: Operation) -> bool:
    """Whether `op` packs values into a list whose only use is the function's return."""
    if not isinstance(op, PackOp) or len(op.inputs) < 2:
        return False
    users = [use.operation for use in op.output.uses]
    return len(users) == 1 and isinstance(users[0], ReturnOp)


def _value(key: Key) -> SSAValue:
    return key  # pyright: ignore[reportReturnType]
