"""`distir.show`: shows how a program is split, and which messages its devices send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Unpack

from xdsl.dialects.builtin import ModuleOp

from distir.facade.model_program import ModelProgram
from distir.facade.simulate import distributed_if_asked
from distir.interpreters.simulator import cluster_of
from distir.interpreters.simulator.profiles.files import ProfileChoice
from distir.interpreters.simulator.reports.argument_layouts import ArgumentLayout
from distir.interpreters.simulator.reports.communication_report import Sent
from distir.interpreters.simulator.simulation import write_json
from distir.sharding.mesh import meshes
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import ShowOptions
from distir.tools.reports.layout_tables import LayoutTables


@dataclass(frozen=True, eq=False)
class ShownProgram:
    """
    The layouts and messages of a `program`, in `tables`. `str()` gives the output of
    the command `distir show`.
    """

    program: ModelProgram
    tables: LayoutTables

    @property
    def module(self) -> ModuleOp:
        """The IR of the program."""
        return self.program.module

    @property
    def arguments(self) -> Sequence[ArgumentLayout]:
        """
        The layouts of the arguments. An argument that has the same layout in all layers
        is listed once.
        """
        return self.tables.arguments

    @property
    def communication(self) -> Sequence[Sent]:
        """
        The messages that a device sends in a step, by module and kind of message; empty
        for a sequential program.
        """
        return self.tables.communication or ()

    def save(self, path: str | Path) -> None:
        """
        Writes the tables to a JSON file. Raises DistIRError if the file cannot be
        written.
        """
        write_json(Path(path), self.tables.to_json())

    def __str__(self) -> str:
        text = StringIO()
        self.tables.print(text)
        return text.getvalue()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def show(
    program: ModelProgram | str | Path, **options: Unpack[ShowOptions]
) -> ShownProgram:
    """
    Returns the layouts of a program's arguments, and the messages that its devices
    send. A sequential program is distributed first, if `cluster` and options of `distir
    distribute` are given. With `scope`, a pattern such as `*.h.3.*`, only matching
    modules and arguments are shown, and each layer separately. Raises DistIRError if
    nothing matches.
    """
    source = ModelProgram.of(program)
    given = command_options("show", "show", [source.name], options)
    source = distributed_if_asked(source, given, "show")
    profiles: tuple[str, ...] = ()
    if meshes(source.module):
        profiles = ProfileChoice.of(given.profile, cluster_of(source.module)).names
    tables = LayoutTables.of(source.module, source.name, given.scope, profiles)
    return ShownProgram(source, tables)
