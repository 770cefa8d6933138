"""The sequential programs that a search distributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from distir.dialects.device import ClusterOp, MeshOp
from distir.errors import DistIRError
from distir.planning.requests import Requests
from distir.program import Program, batch_size, entry_function
from distir.text import ProgramParser, new_context

if TYPE_CHECKING:
    from distir.interpreters.simulator.profiles.profile import Profile


def batch_of(module: ModuleOp) -> int:
    """The size of a program's batch: the first dimension of its first input."""
    found = batch_size(entry_function(module))
    if found is None:
        raise DistIRError("search: the program has no input with a batch dimension")
    return found


def trains(module: ModuleOp) -> bool:
    """Whether a program is a training step."""
    return Program(module).trains


@dataclass(frozen=True)
class Programs:
    """
    One model for several sizes of the batch, as text that worker processes can be given.

    The sizes are separate programs, for a program may hold numbers that follow from its
    batch (the divisor of a mean, in the gradient), so that none can be derived from
    another. `profiles` say what the cluster's devices reach in practice, `requests` what
    every plan must keep to.
    """

    texts: Mapping[int, str]
    profiles: tuple[Profile, ...] = ()
    requests: Requests = field(default_factory=Requests)

    @staticmethod
    def of(
        modules: Sequence[ModuleOp],
        cluster: ClusterOp,
        profiles: Sequence[str | Path] = (),
        requests: Requests | None = None,
    ) -> Programs:
        """
        Returns the programs with one cluster, which replaces their own, and with the
        profiles that `simulate` takes. Raises DistIRError.
        """
        # Imported here, as the simulator takes long to import.
        from distir.interpreters.simulator.costs.hardware import Hardware
        from distir.interpreters.simulator.profiles.files import load_profiles

        known = load_profiles(profiles, cluster)
        Hardware.of(cluster, known)  # refuses profiles of other devices
        texts: dict[int, str] = {}
        for module in modules:
            batch = batch_of(module)
            if batch in texts:
                raise DistIRError(
                    f"search: two of the programs have a batch of {batch}; give one for each "
                    f"size of the batch"
                )
            placed = module.clone()
            replace_cluster(placed, cluster.clone())
            texts[batch] = str(placed)
        return Programs(texts, tuple(known), requests or Requests())

    def __call__(self, batch: int) -> ModuleOp:
        """Parses the program for a size of the batch, with its cluster."""
        return ProgramParser(new_context(), self.texts[batch]).parse_module()


def replace_cluster(module: ModuleOp, cluster: ClusterOp) -> None:
    """
    Puts a cluster in front of a program in place of those that it has; its meshes then
    refer to that cluster.
    """
    for op in list(module.body.block.ops):
        if isinstance(op, ClusterOp) and op is not cluster:
            op.detach()
        elif isinstance(op, MeshOp):
            op.properties["cluster"] = SymbolRefAttr(cluster.sym_name)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(cluster, first)


def cluster_of_text(text: str) -> ClusterOp:
    """
    Parses a text that holds one cluster, and returns it detached. Raises ParseError, or
    ValueError for another op.
    """
    op = ProgramParser(new_context(), text).parse_module().body.block.first_op
    if not isinstance(op, ClusterOp):
        raise ValueError("there is no cluster")
    op.detach()
    return op
