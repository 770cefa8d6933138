"""The state that all functions of one device's program share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation

from distir.dialects import dist
from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.per_rank import RecvFromRankOp, SendToRankOp
from distir.dialects.dist import Layout, layout_of
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.program import functions
from distir.sharding.layout import local_type
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.sends import Rounds, plan_send
from distir.transforms.projection.collectives import layouts_around

_TRANSFERS = (
    SendToRankOp,
    RecvFromRankOp,
    kinds.Rooted,
    kinds.Permute,
)


@dataclass
class Projection:
    """
    The projection of a program to one device, function by function. `project` projects
    one function; it returns None if the function has no work on the device.
    """

    module: ModuleOp
    rank: int
    project: Callable[[Projection, FuncOp], FuncOp | None]
    mesh_of: Mapping[str, Mesh] = field(init=False)
    projected: dict[str, FuncOp | None] = field(
        default_factory=lambda: dict[str, FuncOp | None]()
    )
    arriving: dict[str, frozenset[int]] = field(
        default_factory=lambda: dict[str, frozenset[int]]()
    )
    """The indices of the results that each projected function returns in flight."""
    _transferring: dict[str, bool] = field(default_factory=lambda: dict[str, bool]())
    _sent: dict[tuple[tuple[int, ...], Layout, Layout], Rounds] = field(
        default_factory=lambda: dict[tuple[tuple[int, ...], Layout, Layout], Rounds]()
    )

    def __post_init__(self) -> None:
        self.mesh_of = meshes(self.module)

    def lives_here(self, type_: Attribute) -> bool:
        """Whether this device holds values of type `type_`, wholly or in part."""
        layout = layout_of(type_)
        if layout is None:
            return True
        if layout.mesh not in self.mesh_of:
            raise DistIRError(f"there is no device.mesh @{layout.mesh} in the module")
        return self.rank in self.mesh_of[layout.mesh].devices

    def local(self, type_: Attribute) -> Attribute:
        return local_type(type_, self.mesh_of)

    def transfers(self, op: Operation) -> bool:
        """Whether `op`, an op of the projection, moves tensors between two devices."""
        if not isinstance(op, CallOp):
            return isinstance(op, _TRANSFERS)
        name = op.callee.string_value()
        if name not in self._transferring:
            called = self.function(name)
            self._transferring[name] = called is not None and any(
                map(self.transfers, called.body.block.ops)
            )
        return self._transferring[name]

    def sent(self, op: dist.SendOp) -> Rounds:
        """
        Returns the pieces into which a send between meshes of different shapes divides
        its value.
        """
        before, after = layouts_around(op)
        key = shape_of(op.source.type), before, after
        if key not in self._sent:
            source, target = self.mesh_of[before.mesh], self.mesh_of[after.mesh]
            self._sent[key] = plan_send(key[0], before, source, after, target)
        return self._sent[key]

    def function(self, name: str) -> FuncOp | None:
        """
        Returns the projection of the function `name`, or None if the function has no
        work on this device. The projection has only the arguments, ops and results that
        are on this device. Called functions are projected when they are needed. Raises
        DistIRError if there is no function `name`.
        """
        if name not in self.projected:
            found = functions(self.module).get(name)
            if found is None:
                raise DistIRError(
                    f"func.call names @{name}, which is not in the module"
                )
            self.projected[name] = None  # a recursive call finds nothing to do
            self.projected[name] = self.project(self, found)
        return self.projected[name]
