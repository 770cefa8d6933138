"""The configurations that a search goes through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

from distir.dialects.device import MOST_DEVICES
from distir.errors import DistIRError

MICRO_BATCHES = (2, 4, 8, 16, 32, 64, 128)
"""Numbers of micro-batches that are tried where none are given (DistIR section 5)."""

OVERLAP = {"off": False, "on": True}
"""Whether communication overlaps computation, as options name it."""


def overlaps(names: Sequence[str]) -> tuple[bool, ...]:
    """The values of `overlap` that options name. Raises DistIRError."""
    unknown = [name for name in names if name not in OVERLAP]
    if unknown:
        raise DistIRError(
            f"search: overlap cannot be {unknown[0]!r}; choose from {', '.join(OVERLAP)}"
        )
    return tuple(OVERLAP[name] for name in names)


@dataclass(frozen=True, order=True)
class Configuration:
    """
    One way to distribute a program: options of `distribute`, and the size of the batch.
    An empty `schedule` is the default one of `pipeline`; `stages` may be `search`.

    With `axes` ("d=2,t=4") layouts are searched on a mesh with these axes
    (`search-sharding`), one for each rank of a pipeline; `d`, `t` and `zero` then say
    nothing.
    """

    batch: int
    d: int = 1
    t: int = 1
    p: int = 1
    zero: int = 0
    checkpoint: str = "none"
    k: int = 1
    schedule: str = ""
    stages: str = ""
    overlap: bool = False
    axes: str = ""

    @property
    def is_pipelined(self) -> bool:
        """Whether there is a schedule: several ranks or several micro-batches."""
        return self.p > 1 or self.k > 1

    @property
    def shared(self) -> tuple[object, ...]:
        """What two configurations have in common whose layouts are chosen together."""
        return (
            self.batch,
            self.d,
            self.t,
            self.p,
            self.zero,
            self.checkpoint,
            self.is_pipelined,
            self.axes,
        )

    def __str__(self) -> str:
        text = f"batch={self.batch} d={self.d} t={self.t} p={self.p} k={self.k}"
        if self.axes:
            text = f"batch={self.batch} layouts searched over {self.axes}"
            if self.is_pipelined:
                text += f" p={self.p} k={self.k}"
        if self.zero:
            text += f" zero={self.zero}"
        if self.checkpoint != "none":
            text += f" checkpoint={self.checkpoint}"
        if self.schedule:
            text += f" schedule={self.schedule}"
        if self.stages:
            text += f" stages={self.stages}"
        return text + (" overlap" if self.overlap else "")


@dataclass(frozen=True)
class Space:
    """
    The grid of configurations (DistIR section 5).

    - `batches`: sizes of the batch; `trains`: whether the program is a training step;
    - `devices`: d x t x p is exactly that many, unless `degrees` lists triples (d, t, p);
    - `micro_batches`: numbers of micro-batches k. Without them, k is 1 for p = 1, and
      one of 2, 4, ... 128 for a pipeline. With them, pipelines take each of them, and a
      training step on one pipeline rank takes 1 and each of them (it accumulates
      gradients);
    - `zero`, `checkpoint`: of training steps; a ZeRO stage is left out where d = 1;
    - `schedules`: of pipelines; none is the default schedule;
    - `overlap`: whether communication overlaps computation, where there are several devices.
    """

    batches: Sequence[int]
    trains: bool
    devices: int = 1
    degrees: Sequence[tuple[int, int, int]] = ()
    micro_batches: Sequence[int] = ()
    zero: Sequence[int] = (0,)
    checkpoint: Sequence[str] = ("none",)
    schedules: Sequence[str] = ()
    overlap: Sequence[bool] = (False,)

    def configurations(self) -> list[Configuration]:
        """
        All of them, those that share work next to each other. Those whose devices would
        get no sample per micro-batch are left out. Raises DistIRError if none is left.
        """
        if not self.trains and (any(self.zero) or set(self.checkpoint) != {"none"}):
            raise DistIRError(
                "search: ZeRO and activation checkpointing are for training steps, but the "
                "program updates no argument (dist.updates); build or import it with "
                "--training, or leave them out"
            )
        if self.devices > MOST_DEVICES:
            raise DistIRError(
                f"search: {self.devices} devices are more than a cluster may have; ask for "
                f"at most {MOST_DEVICES}"
            )
        found = self.known()
        if not found:
            raise DistIRError(
                f"search: the grid is empty: none of its configurations gives each device "
                f"a sample of a batch of {max(self.batches)} or less; choose larger batches, "
                f"fewer devices or fewer micro-batches"
            )
        return found

    def known(self) -> list[Configuration]:
        """As `configurations`, of which there may be none."""
        return list(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[Configuration]:
        degrees = self.degrees or list(_factorisations(self.devices))
        for batch in self.batches:
            for d, t, p in degrees:
                for zero in self.zero if d > 1 else sorted({0} & set(self.zero)) or [0]:
                    for checkpoint in self.checkpoint:
                        for k, schedule in self._pipelines(p):
                            if batch // d // k == 0:
                                continue
                            for overlap in self.overlap if d * t * p > 1 else (False,):
                                yield Configuration(
                                    batch, d, t, p, zero, checkpoint, k, schedule,
                                    overlap=overlap,
                                )  # fmt: skip

    def _pipelines(self, p: int) -> Iterator[tuple[int, str]]:
        """Numbers of micro-batches and schedules on p ranks."""
        if p == 1:
            yield 1, ""
            if self.trains:
                yield from ((k, "") for k in sorted(self.micro_batches) if k > 1)
            return
        for k in sorted(self.micro_batches or MICRO_BATCHES):
            for schedule in self.schedules or ("",):
                yield k, schedule


def _factorisations(devices: int) -> Iterator[tuple[int, int, int]]:
    """All (d, t, p) whose product is the number of devices."""
    for d in _divisors(devices):
        for t in _divisors(devices // d):
            yield d, t, devices // (d * t)


def _divisors(number: int) -> list[int]:
    """All divisors of a number, ascending."""
    small = [i for i in range(1, isqrt(number) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})
