"""
Compares the collectives that the simulator counts for a plan with the collectives of
the function that XLA compiled with the plan's shardings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import combinations

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.interpreters.simulator.engine.compiled import CommunicationStep
from distir.interpreters.simulator.engine.following import Follower
from distir.interpreters.simulator.engine.machine import Execution
from distir.interpreters.simulator.engine.scopes import ScopeCache
from distir.interpreters.simulator.simulation import Simulation
from distir.jax.hlo import hlo_collectives
from distir.program import argument_names
from distir.sharding.mesh import Mesh
from distir.tools.reports.reporting import bytes_text, table

WIDTH = 80
"""The most columns of the text of plans and collectives."""


@dataclass(frozen=True)
class Message:
    """
    A collective of one tensor.

    Attributes:
        kind: The name of the collective, such as `all_reduce`.
        over: The mesh axes over which the collective communicates. If the groups of devices do not lie along mesh axes, their size, such as `2 of 8`.
        bytes: The bytes that a device sends.
        name: The name of the argument or op that the tensor comes from.
    """

    kind: str
    over: str
    bytes: int
    name: str

    @property
    def traffic(self) -> tuple[str, str, int]:
        """
        The kind, the devices and the bytes of the message. Two messages match if these
        are equal.
        """
        return self.kind, self.over, self.bytes


@dataclass(frozen=True, eq=False)
class Collectives:
    """
    The collectives of a step, as simulated and in the function that XLA compiled.
    `print` shows both, by kind and axes, and the single collectives that occur on only
    one side.

    Attributes:
        simulated: The messages that the simulator counts for a device.
        compiled: The messages of a device in the compiled function, with the names that
            JAX gave to the ops. A collective of several tensors has a message for each.
    """

    simulated: Sequence[Message]
    compiled: Sequence[Message]

    @property
    def simulated_bytes(self) -> int:
        """The bytes that a device sends in a step, as simulated."""
        return sum(message.bytes for message in self.simulated)

    @property
    def compiled_bytes(self) -> int:
        """The bytes that a device sends in a step of the compiled function."""
        return sum(message.bytes for message in self.compiled)

    @property
    def ratio(self) -> float:
        """
        The number of bytes in the compiled function divided by the number of simulated
        bytes.
        """
        if not self.simulated_bytes:
            return 1.0 if not self.compiled_bytes else float("inf")
        return self.compiled_bytes / self.simulated_bytes

    @cached_property
    def only_simulated(self) -> Mapping[Message, int]:
        """
        The simulated messages for which the compiled function has no message of the
        same kind, devices and bytes, each with their number. Messages that send the
        most come first.
        """
        return _unmatched(self.simulated, self.compiled)

    @cached_property
    def only_compiled(self) -> Mapping[Message, int]:
        """
        The compiled messages for which the simulation has no message of the same kind,
        devices and bytes, each with their number. Messages that send the most come
        first.
        """
        return _unmatched(self.compiled, self.simulated)

    def __str__(self) -> str:
        text = StringIO()
        sides = [_totals(self.simulated), _totals(self.compiled)]
        keys = list(dict.fromkeys(key for side in sides for key in side))
        rows = [[*key, *_cells(sides[0], key), *_cells(sides[1], key)] for key in keys]
        sums = [
            (len(s), sum(m.bytes for m in s)) for s in (self.simulated, self.compiled)
        ]
        cells = [cell for n, size in sums for cell in (str(n), bytes_text(size))]
        columns = ["simulated", "bytes", "compiled", "bytes"]
        rows.append(["all", "", *cells])
        table(["collective", "over", *columns], rows, text, WIDTH)
        for title, found in (
            ("only simulated", self.only_simulated),
            ("only compiled", self.only_compiled),
        ):
            if found:
                text.write(f"\n{title}\n")
                columns = ["op", "collective", "over", "times", "bytes"]
                table(columns, [_row(m, n) for m, n in found.items()], text, WIDTH)
        return text.getvalue()


def _totals(messages: Iterable[Message]) -> dict[tuple[str, str], tuple[int, int]]:
    """
    Returns the number of messages and the sum of their bytes, by kind and devices.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for message in messages:
        count, size = found.get((message.kind, message.over), (0, 0))
        found[message.kind, message.over] = count + 1, size + message.bytes
    return found


def _cells(
    totals: Mapping[tuple[str, str], tuple[int, int]], key: tuple[str, str]
) -> list[str]:
    count, size = totals.get(key, (0, 0))
    return [str(count), bytes_text(size)] if count else ["-", "-"]


def _row(message: Message, count: int) -> list[str]:
    each = (
        f"{bytes_text(message.bytes)} each" if count > 1 else bytes_text(message.bytes)
    )
    return [message.name, message.kind, message.over, str(count), each]


def _unmatched(own: Sequence[Message], others: Sequence[Message]) -> dict[Message, int]:
    """
    Returns the messages of `own` that remain after pairs of equal traffic are removed,
    each with their number.
    """
    left = Counter(message.traffic for message in others)
    found: Counter[Message] = Counter()
    for message in own:
        if left[message.traffic]:
            left[message.traffic] -= 1
        else:
            found[message] += 1
    order = sorted(found, key=lambda message: -message.bytes * found[message])
    return {message: found[message] for message in order}


def compared(simulation: Simulation, mesh: Mesh, text: str) -> Collectives:
    """
    Returns the collectives of a simulated program on `mesh` and of the compiled
    function with the HLO `text`. Raises DistIRError if the text cannot be read.
    """
    recorder = _Recorder()
    simulation.run.follow(recorder)
    names = _axes_by_groups(mesh)
    compiled: list[Message] = []
    for found in hlo_collectives(text):
        key = frozenset(frozenset(group) for group in found.groups)
        size = max(map(len, found.groups), default=1)
        over = "-" if found.kind == "shift" else names.get(key)
        for sent, name in zip(found.sent, found.names, strict=True):
            message = Message(found.kind, over or f"{size} devices", round(sent), name)
            compiled += [message] * found.times
    return Collectives(
        [message for message in recorder.messages if message.bytes],
        [message for message in compiled if message.bytes],
    )


def _axes_by_groups(mesh: Mesh) -> dict[frozenset[frozenset[int]], str]:
    """
    Maps each partition of the devices into groups to the names of the mesh axes along
    which these groups communicate. Devices are numbered as in JAX's mesh of a plan.
    """
    sizes = [size for _, size in mesh.axes]
    numbers = np.arange(len(mesh.devices)).reshape(sizes)
    found: dict[frozenset[frozenset[int]], str] = {}
    for count in range(1, len(sizes) + 1):
        for chosen in combinations(range(len(sizes)), count):
            others = [dim for dim in range(len(sizes)) if dim not in chosen]
            rows = numbers.transpose([*others, *chosen])
            rows = rows.reshape(-1, int(np.prod([sizes[dim] for dim in chosen])))
            key = frozenset(frozenset(map(int, row)) for row in rows)
            found.setdefault(key, ",".join(mesh.axes[dim][0] for dim in chosen))
    return found


class _Recorder(Follower):
    """
    Records one message for each collective: the message of the device that sends the
    most.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._scope = ScopeCache()

    def ran(self, execution: Execution) -> None:
        step, path, _, _, _ = execution
        if not isinstance(step, CommunicationStep):
            return
        op = step.op
        over = ",".join(op.axis_names) if isinstance(op, CollectiveOp) else "-"
        kind = op.name.removeprefix("collective.").removeprefix("dist.")
        scope = self._scope(op, path)
        name = _source(op.operands[0])
        for transfer in step.transfers:
            sent = round(float(transfer.sent.max(initial=0)))
            called = f"{name} ({scope})" if scope else name
            self.messages.append(Message(kind, over, sent, called))


def _source(value: SSAValue) -> str:
    """Returns the name of the argument or op that computes a collective's tensor."""
    owner = value.owner
    while isinstance(owner, CollectiveOp):
        value = owner.operands[0]
        owner = value.owner
    if isinstance(owner, Operation):
        return owner.name
    function = owner.parent_op()
    if isinstance(function, FuncOp) and isinstance(value, BlockArgument):
        return argument_names(function)[value.index]
    return value.name_hint or "an argument"
