"""Finds the module of a step in which NaN appears first, by running the step again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram
from distir.parallel.scripts.source_places import SourcePlace, place_of, running_frames


@dataclass(frozen=True)
class NanOrigin:
    """
    The first op on a rank with NaN in its result, and its place in the module (None if
    no method of the program runs the op). `file` is the program's file.
    """

    op: str
    place: SourcePlace | None
    file: str


class _FirstNan(TorchDispatchMode):
    """
    Records the first op of a program that has NaN in its result but not in its
    operands.
    """

    def __init__(self, file: str):
        super().__init__()
        self._file = file
        self.origin: NanOrigin | None = None

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        known = self.origin is not None or _has_nan((args, kwargs))
        result = func(*args, **(kwargs or {}))
        # New memory has any numbers.
        if not known and "empty" not in str(func) and _has_nan(result):
            frames = running_frames(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            place = place_of(frames, self._file)
            self.origin = NanOrigin(str(func), place, self._file)
        return result


def _has_nan(values: Any) -> bool:
    return any(
        bool(torch.isnan(leaf).any())
        for leaf in tree_leaves(values)
        if isinstance(leaf, torch.Tensor)
        and (leaf.is_floating_point() or leaf.is_complex())
        and leaf.numel()
    )


def check_nan(
    program: RankProgram,
    given: Mapping[str, torch.Tensor],
    results: Mapping[int, torch.Tensor],
) -> None:
    """
    Raises DistIRError, on every rank, if a result of a step has NaN on any rank.
    `given` are this rank's arguments of the step. Every rank must call this function.
    """
    flag = torch.tensor(int(_has_nan(dict(results))), device=program.device)
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    if not flag:
        return
    own: NanOrigin | str | None
    own = next((name for name, value in given.items() if _has_nan(value)), None)
    mode = _FirstNan(str(program.folder / "program.py"))
    with torch.compiler.set_stance("force_eager"), mode:
        program.run(given)
    own = own or mode.origin
    every: list[NanOrigin | str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    raise DistIRError(_message(every))


def _message(every: Sequence[NanOrigin | str | None]) -> str:
    """
    Returns an error message that names the place where NaN appears first. `every` has,
    for each rank, the first op with NaN, the name of an argument with NaN, or None.
    """
    given = [(rank, name) for rank, name in enumerate(every) if isinstance(name, str)]
    if given:
        rank, name = given[0]
        return f"a step gives NaN: {name!r} has NaN itself, on rank {rank}"
    found = [(rank, o) for rank, o in enumerate(every) if isinstance(o, NanOrigin)]
    if not found:
        return (
            "a step gives NaN, but not when it runs again: an op gives other numbers from "
            "time to time"
        )
    rank, origin = found[0]
    place = origin.place
    inside, where = "outside of modules", origin.file
    if place is not None and place.module:
        inside = f"in module {place.module!r}"
        if place.near:
            inside += f" (in its part {place.near!r}, or behind it)"
    if place is not None:
        where = f"line {place.line} of {origin.file}"
        if place.source:
            where = f"{place.source}; {where}"
    return (
        f"a step gives NaN, which appears first {inside}, in {origin.op} on rank {rank} "
        f"({where})"
    )
