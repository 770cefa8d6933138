"""`distir.cluster`: describes a cluster by a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Unpack

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import ClusterOptions


@dataclass(frozen=True, eq=False)
class DescribedCluster:
    """
    The description of a cluster, which is the only op of `module`. The option `cluster`
    of other functions takes the file that `save` writes.
    """

    module: ModuleOp

    def save(self, path: str | Path) -> None:
        """
        Writes the description to an `.mlir` file, for the option `cluster` of functions
        such as `distir.search`. Raises DistIRError if the file cannot be written.
        """
        from distir.tools.files import write_program

        try:
            write_program(self.module, Path(path))
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error

    def __str__(self) -> str:
        return str(self.module)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def cluster(kind: str, **options: Unpack[ClusterOptions]) -> DescribedCluster:
    """
    Describes a cluster of equal nodes, with the options of the command `distir
    cluster`. `kind` is the kind of device, such as `A100`. The options include `nodes`,
    `devices_per_node` and `nic`. Raises DistIRError if an option is invalid.
    """
    from distir.tools.commands.cluster import described

    given = {"kind": kind, **options}
    asked = command_options("cluster", "cluster", ["-o", "-"], given)
    return DescribedCluster(described(asked, "cluster"))
