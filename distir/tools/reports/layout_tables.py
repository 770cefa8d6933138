"""
The tables of `distir show`: the layouts of a program's arguments, and its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import IO, TYPE_CHECKING, Any

from distir.errors import DistIRError
from distir.tools.reports.reporting import bytes_text, progress, table

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.interpreters.simulator.reports.argument_layouts import ArgumentLayout
    from distir.interpreters.simulator.reports.communication_report import Sent


@dataclass(frozen=True)
class LayoutTables:
    """
    The layouts of a program's arguments, and the messages of its devices in a step.

    Attributes:
        arguments: The layouts of the arguments; equal layouts of all layers share an
            entry.
        communication: The messages of a device, an entry for each module and kind of
            message; None for a sequential program.
    """

    arguments: Sequence[ArgumentLayout]
    communication: Sequence[Sent] | None

    @staticmethod
    def of(
        module: ModuleOp, name: str, scope: str | None, profiles: Sequence[str]
    ) -> LayoutTables:
        """
        Returns the tables of a program. `name` is the name of the program in messages.
        `scope` is a pattern, or None. With a pattern, only matching modules and
        arguments are listed, and each layer separately. A distributed program is
        simulated with `profiles` to find its messages. Raises DistIRError if the
        program cannot be simulated, or if nothing matches `scope`.
        """
        from distir.interpreters.simulator import simulate
        from distir.interpreters.simulator.reports.argument_layouts import (
            argument_layouts,
        )
        from distir.interpreters.simulator.reports.communication_report import (
            communication_of,
        )
        from distir.sharding.mesh import meshes

        by_layer = scope is not None
        arguments = argument_layouts(module, by_layer)
        sent = None
        if meshes(module):
            with progress("adding up what devices send"):
                sent = communication_of(simulate(module, profiles=profiles), by_layer)
        if scope is None:
            return LayoutTables(arguments, sent)
        arguments = [entry for entry in arguments if fnmatchcase(entry.name, scope)]
        matching = [entry for entry in sent or () if fnmatchcase(entry.scope, scope)]
        if not arguments and not matching:
            raise DistIRError(
                f"nothing of {name} matches the scope {scope!r}; without one, `distir show` "
                f"lists the names"
            )
        return LayoutTables(arguments, None if sent is None else matching)

    def to_json(self) -> dict[str, Any]:
        """Returns the tables as JSON data."""
        content = {"arguments": [entry.to_json() for entry in self.arguments]}
        if self.communication is not None:
            content["communication"] = [e.to_json() for e in self.communication]
        return content

    def print(self, file: IO[str] | None = None, width: int | None = None) -> None:
        """
        Prints the tables to `file`, or to stdout if it is None, with at most `width`
        columns, by default the width of the terminal.
        """
        _print_arguments(self.arguments, file, width)
        if self.communication is not None:
            _print_communication(self.communication, file, width)


def _print_arguments(
    arguments: Sequence[ArgumentLayout], file: IO[str] | None, width: int | None
) -> None:
    """
    Prints a line for each argument; equal arguments of all layers share a line. The
    last column is the size of one argument on one device.
    """
    from distir.interpreters.simulator.reports.program_description import shape_text

    if not arguments:
        return
    table(
        ["argument", "shape", "split", "on a device", "bytes"],
        [
            [
                _counted(entry.name, len(entry.names)),
                shape_text(entry.shape),
                entry.split_text,
                shape_text(entry.local_shape),
                bytes_text(entry.local_bytes),
            ]
            for entry in arguments
        ],
        file,
        width,
    )
    by_role: dict[str, int] = {}
    for entry in arguments:
        size = entry.local_bytes * len(entry.names)
        by_role[entry.role] = by_role.get(entry.role, 0) + size
    where = (
        "on one device"
        if not any(len(e.meshes) > 1 for e in arguments)
        else ("on one device of every stage together")
    )
    totals = ", ".join(f"{role} {bytes_text(size)}" for role, size in by_role.items())
    print(f"{where}: {totals}", file=file)


def _print_communication(
    sent: Sequence[Sent], file: IO[str] | None, width: int | None
) -> None:
    """
    Prints the messages of a device in a step, a line for each module and kind of
    message.
    """
    if not sent:
        print("\nno device sends anything", file=file)
        return
    print("\nwhat a device sends in a step", file=file)
    table(
        ["module", "collective", "over", "messages", "bytes"],
        [
            [
                entry.scope or "(none)",
                entry.op.removeprefix("collective.").removeprefix("dist."),
                ",".join(entry.axes),
                str(entry.times),
                bytes_text(entry.size),
            ]
            for entry in sent
        ],
        file,
        width,
    )


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count})"
