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
    """
    Returns a program's batch size, the first dimension of its first input. Raises
    DistIRError if no input has a batch dimension.
    """
    found = batch_size(entry_function(module))
    if found is None:
        raise DistIRError("search: the program has no input with a batch dimension")
    return found


def trains(module: ModuleOp) -> bool:
    """Returns whether the program is a training step."""
    return Program(module).trains


@dataclass(frozen=True)
class Programs:
    """
    One model for several batch sizes.

    - `modules`: the program for each batch size, with its cluster. Each batch size has
      its own program, because a program may contain numbers that depend on its batch,
      such as the divisor of a mean in a gradient;
    - `profiles`: the measured performance of the cluster's devices;
    - `requests`: the user's requests, which every plan must keep.

    Programs are pickled as texts, for worker processes that cannot be forked.
    """

    modules: Mapping[int, ModuleOp]
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
        Returns the programs, each with `cluster` in place of its own cluster.
        `profiles` are names or files of profiles for the simulator. Raises DistIRError
        if two programs have the same batch size, if a program has no batch dimension,
        or if a profile does not fit the cluster.
        """
        # Imported here, as the simulator takes long to import.
        from distir.interpreters.simulator.costs.hardware import Hardware
        from distir.interpreters.simulator.profiles.files import load_profiles

        known = load_profiles(profiles, cluster)
        Hardware.of(cluster, known)  # refuses profiles of other devices
        placed: dict[int, ModuleOp] = {}
        for module in modules:
            batch = batch_of(module)
            if batch in placed:
                raise DistIRError(
                    f"search: two of the programs have a batch of {batch}; give one for each "
                    f"size of the batch"
                )
            placed[batch] = module.clone()
            replace_cluster(placed[batch], cluster.clone())
        return Programs(placed, tuple(known), requests or Requests())

    @staticmethod
    def of_texts(
        texts: Mapping[int, str], profiles: tuple[Profile, ...], requests: Requests
    ) -> Programs:
        """
        Returns the programs that `texts` holds, by batch size. Raises ParseError for a
        malformed text.
        """
        modules = {
            batch: ProgramParser(new_context(), text).parse_module()
            for batch, text in texts.items()
        }
        return Programs(modules, profiles, requests)

    @property
    def texts(self) -> dict[int, str]:
        """The programs as texts, by batch size."""
        return {batch: str(module) for batch, module in self.modules.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return Programs.of_texts, (self.texts, self.profiles, self.requests)

    def __call__(self, batch: int) -> ModuleOp:
        """Returns a copy of the program for the batch size `batch`, with its cluster."""
        return self.modules[batch].clone()


def replace_cluster(module: ModuleOp, cluster: ClusterOp) -> None:
    """
    Inserts `cluster` at the start of a program and removes its other clusters. The
    program's meshes then refer to `cluster`.
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
    Returns the cluster that `text` holds, parsed and detached. Raises ParseError for a
    malformed text, and ValueError if its first op is not a cluster.
    """
    op = ProgramParser(new_context(), text).parse_module().body.block.first_op
    if not isinstance(op, ClusterOp):
        raise ValueError("there is no cluster")
    op.detach()
    return op
