"""Writes successive calls of one function as a loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from xdsl.ir import SSAValue

from distir.lowering.source.method_names import Key, MethodNames, member
from distir.lowering.source.runs import CallRun, ValueList


class Loop:
    """
    The header and the body of a loop, with the variables that hold values after it.
    """

    def __init__(
        self,
        method: MethodNames,
        run: CallRun,
        dying: Sequence[Key],
        variables: dict[int, str],
    ):
        self.method, self.run, self.dying = method, run, dying
        self.carried = variables
        self.kept = set(variables.values())
        self.results: dict[int, str] = dict(variables)
        self.temporary: list[str] = []
        self.zipped: list[tuple[str, str]] = []
        self.prepared: list[str] = []
        """Lines before the loop."""
        self.before: list[str] = []
        """Lines at the start of an iteration."""
        self._find_given_away()
        self.callee = self._callee()
        self.passed = self._passed()

    def _find_given_away(self) -> None:
        """
        Finds the values that one iteration of this loop takes as an operand and that
        the method does not use after the loop. The iteration then frees the value.
        Values without another use in the loop are put into `released`; their variables
        are deleted before the loop.
        """
        run, method = self.run, self.method
        given = {method.key(v) for values in run.given.values() for v in values}
        self.given_away = given & {*self.dying}
        others: set[Key] = {each.source for each, _ in run.taken.values()}
        for position, value in enumerate(run.calls[0].operands):
            if position not in run.given and position not in run.taken:
                others.add(method.key(value))
        self.released = [k for k in self.dying if k in self.given_away - others]

    def header(self) -> str:
        """Returns the line that begins the loop."""
        if not self.zipped:
            return f"for _ in range({len(self.run.calls)}):"
        names = ", ".join(name for name, _ in self.zipped)
        sources = [source for _, source in self.zipped]
        over = sources[0] if len(sources) == 1 else f"zip({', '.join(sources)})"
        return f"for {names} in {over}:"

    def body(self) -> list[str]:
        """Returns the lines of an iteration."""
        run, lines = self.run, list(self.before)
        for position, source in run.inputs.items():
            lines.append(f"{source.name}.append({self.carried[run.carried[position]]})")
        call = f"{self.callee}({', '.join(self.passed)})"
        count = len(run.calls[0].results)
        group, source = run.outputs or ([], None)
        if source is not None and len(group) == count:
            return [*lines, f"{source.name}.append({call})"]
        targets, kept = self._targets(count, group)
        lines.append(f"{', '.join(targets)} = {call}" if targets else call)
        if source is not None:
            lines.append(f"{source.name}.append({kept})")
        return lines

    def _targets(self, count: int, group: Sequence[int]) -> tuple[list[str], str]:
        """
        Returns the variables for the results of a call, and the expression that is
        appended to the list of outputs.
        """
        method, first = self.method, self.run.calls[0]
        targets: list[str] = []
        own: list[str] = []
        star = len(group) > 1 and list(group) == list(range(group[0], group[-1] + 1))
        for result in range(count):
            value = first.results[result]
            if result in self.carried:
                targets.append(self.carried[result])
            elif star and result in group:
                if result == group[0]:
                    own.append(self._temporary(value))
                    targets.append(f"*{own[0]}")
            elif result in group:
                own.append(self._temporary(value))
                targets.append(own[-1])
            elif result in self.run.last:
                name = method.names.fresh(method.writer.hint(value), "x")
                self.results[result] = name
                targets.append(name)
            else:
                targets.append(self._temporary(value))
        return targets, own[0] if len(own) == 1 else f"({', '.join(own)})"

    def _temporary(self, value: SSAValue) -> str:
        name = self.method.names.fresh(self.method.writer.hint(value), "x")
        self.temporary.append(name)
        return name

    def _callee(self) -> str:
        method, calls = self.method, self.run.calls
        name = method.writer.program.method_name(calls[0])
        paths = [method.writer.child_path(c) for c in calls]
        if paths[0] is None:
            return f"self.{name}"
        if len(set(paths)) == 1:
            return f"{member(paths[0])}.{name}"
        variable = method.names.fresh(method.writer.child_name(calls[0]), "layer")
        given = [p for p in paths if p is not None]
        self.zipped.append((variable, method.writer.iterated(given)))
        return f"{variable}.{name}"

    def _passed(self) -> list[str]:
        run, method = self.run, self.method
        members = method.writer.program.passed_members[run.calls[0]]
        taken = self._taken()
        found: list[str] = []
        for position, value in enumerate(run.calls[0].operands):
            if position in members:
                continue
            if position in run.carried:
                found.append(self.carried[run.carried[position]])
            elif position in taken:
                found.append(taken[position])
            elif position in run.given:
                values = run.given[position]
                if any(method.key(v) in self.given_away for v in values):
                    # Only the list holds the values, and each iteration removes one.
                    name = method.names.fresh(method.plural(value), "values")
                    items = ", ".join(method.listed(values))
                    self.prepared.append(f"{name} = [{items}]")
                    self.temporary.append(name)
                    found.append(f"{name}.pop(0)")
                    continue
                name = self._temporary(value)
                self.zipped.append((name, f"({', '.join(method.listed(values))},)"))
                found.append(name)
            else:
                found.append(method.name(value))
        return [text for text in found if text]

    def _taken(self) -> dict[int, str]:
        """
        Returns, by position, the argument text for operands that come from lists. If
        one `*` passes several operands, the first of them gets the text and the rest
        get an empty string.
        """
        by_source: dict[tuple[ValueList, bool], list[tuple[int, int]]] = defaultdict(
            list
        )
        for position, (each, part) in self.run.taken.items():
            by_source[each.source, each.backwards].append((position, part))
        sources = [source for source, _ in by_source]
        found: dict[int, str] = {}
        for (source, backwards), parts in by_source.items():
            size = len(source.items[0])
            ends = source in self.dying and sources.count(source) == 1
            first = parts[0][0]
            whole = parts == [(first + k, k) for k in range(size)]
            each = f"{source.name}.pop({'' if backwards else '0'})"
            if not (ends and (whole or len(parts) == 1)):
                name = self._temporary(source.hint)
                if ends:
                    self.before.append(f"{name} = {each}")
                else:
                    text = f"reversed({source.name})" if backwards else source.name
                    self.zipped.append((name, text))
                each = name
            if ends:
                self.method.popped.add(source)
            for position, part in parts:
                found[position] = each if size == 1 else f"{each}[{part}]"
            if whole and size > 1:
                found.update({position: "" for position, _ in parts})
                found[first] = f"*{each}"
        return found
