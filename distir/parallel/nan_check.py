"""Finds the module of a step in which NaN appears first, by running the step again."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distir.errors import DistIRError
from distir.parallel.rank_program import RankProgram
from distir.transforms.repeats.naming import specialise

_SCOPE = re.compile(r"\s*# (?P<scope>[\w.*]+)$")
"""A comment of a generated program: the module of the source that the next lines are of."""
_DEFINITION = re.compile(r"\s*def ")


@dataclass(frozen=True)
class NanOrigin:
    """
    The place where NaN appears first on a rank: `module` is the path of a module of the source
    ("" if unknown), `near` the last part of it that was entered before ("" if there is none),
    `line` the line of the file of the program.
    """

    op: str
    module: str
    near: str
    file: str
    line: int


class _FirstNan(TorchDispatchMode):
    """Notes the first op of a program whose result has NaN and whose operands have none."""

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
            self.origin = self._place(str(func))
        return result

    def _place(self, op: str) -> NanOrigin:
        frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        frames: list[FrameType] = []
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                frames.append(frame)
            frame = frame.f_back
        if not frames:
            return NanOrigin(op, "", "", self._file, 0)
        root = frames[-1].f_locals["self"]
        paths = {id(part): name for name, part in root.named_modules()}
        module = near = ""
        for frame in reversed(frames):  # the callers first, which know the layer
            scope = _scope_at(self._file, frame.f_lineno)
            part = frame.f_locals["self"]
            if part is not root:
                # Comments in its class are relative to it, and none tells where a part of it
                # ends.
                module, near = paths[id(part)], scope
            elif scope:
                module = specialise(scope, module) if module else scope
        return NanOrigin(op, module, near, self._file, frames[0].f_lineno)


def _scope_at(file: str, line: int) -> str:
    """Returns the scope that the comments of a program give a line; "" for none."""
    while line > 0:
        text = linecache.getline(file, line)
        if (found := _SCOPE.match(text)) is not None:
            return found["scope"]
        if _DEFINITION.match(text):
            return ""
        line -= 1
    return ""


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
    Raises DistIRError, on every rank, if a result of a step has NaN on any rank. `given` are
    this rank's arguments of the step. Every rank must call this.
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
    """Says where NaN appears first, given what each rank found."""
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
    inside = f"in module {origin.module!r}" if origin.module else "outside of modules"
    if origin.near:
        inside += f" (in its part {origin.near!r}, or behind it)"
    return (
        f"a step gives NaN, which appears first {inside}, in {origin.op} on rank {rank} "
        f"(line {origin.line} of {origin.file})"
    )
