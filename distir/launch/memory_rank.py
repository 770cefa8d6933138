"""
Counts the memory of a package's ranks (`distir.launch.memory`) without using that
memory. Tensors have shapes and no values, and sends do nothing.

A storage is counted from the operator that makes it until nothing refers to it. Its
size is the number of bytes that the operator asks for. The working memory of a running
kernel is not counted. Arguments are counted all the time, because the caller of a
program holds them.
"""

from __future__ import annotations

import argparse
import json
import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distir.launch.timing_rank import load_package
from distir.system.output_files import write_text


class LiveStorages(TorchDispatchMode):
    """
    Counts the bytes of all storages that operators make inside a `with` block.

    `live` is the number of bytes now, and `peak` the largest number so far. `at_peak`
    maps each line of `file` to the bytes of the peak that the line allocated; line 0
    stands for tensors that existed before. While `on_device` is false, new tensors are
    on another device, and are never counted.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file
        self.live = self.peak = 0
        self.on_device = True
        self.at_peak: Counter[int] = Counter()
        self._by_line: Counter[int] = Counter()
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, value: object, line: int = 0, *, counts: bool = True) -> None:
        """
        Counts the storages of all tensors in `value` that were not counted before, for
        line `line` of the file. Without `counts`, these storages are on another device,
        and are never counted.
        """
        for leaf in tree_leaves(value):
            if not isinstance(leaf, torch.Tensor):
                continue
            # The storage of a DTensor itself has the global shape, but takes no memory.
            storage = getattr(leaf, "_local_tensor", leaf).untyped_storage()
            if storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes() if counts else 0
                self._change(line, size)
                weakref.finalize(storage, self._change, line, -size)
        if self.live > self.peak:
            self.peak = self.live
            self.at_peak = self._by_line.copy()

    def _change(self, line: int, size: int) -> None:
        self.live += size
        self._by_line[line] += size

    def _line(self) -> int:
        frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return 0 if frame is None else frame.f_lineno

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(result, self._line(), counts=self.on_device)
        return result


def count(package: tuple[Any, Any, Any], rank: int, file: str) -> LiveStorages:
    """
    Makes one call of the program of process `rank` on tensors without values, and
    returns the counted storages. `package` holds the package's modules, and `file` is
    its `program.py`.
    """
    program, runtime, collectives = package
    collectives.start_send = _send
    own = program.RANKS[rank].program
    dist.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=len(program.RANKS)
    )
    try:
        body = runtime.body_of(program, rank, torch.device("cpu"))
        # Constants have values, so they are made before the mode without values.
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with torch.no_grad(), mode:
            _keep_numbers(body, mode)
            storages = LiveStorages(file)
            storages.note(list(body.buffers()))
            arguments = [_argument(program, runtime, i) for i in own.arguments]
            for i, argument in zip(own.arguments, arguments, strict=True):
                storages.note(argument, counts=not program.ARGUMENTS[i].host)
            helper = sys.modules.get(f"{program.__package__}.offload")
            if helper is not None:
                _separate_host(helper, storages)
            with storages:
                runtime.results_of(body, arguments)
        return storages
    finally:
        dist.destroy_process_group()


def _keep_numbers(body: torch.nn.Module, mode: FakeTensorMode) -> None:
    """
    Keeps the values of constants of `body` that are one integer, although tensors of
    `mode` have no values. Programs use such constants as indices, for instance of a
    micro-batch.
    """
    for part in body.modules():
        for name, value in list(vars(part).items()):
            if not isinstance(value, torch.Tensor) or value.dim():
                continue
            if not value.dtype.is_floating_point:
                known = mode.fake_tensor_converter.from_real_tensor(
                    mode, value, make_constant=True
                )
                setattr(part, name, known)


def _send(x: torch.Tensor, peer: int) -> None:
    """
    Does nothing, like a send that is finished at once. The count is thus as with NCCL,
    where a sent tensor can be freed when the receiver has it. (Gloo keeps the tensor
    until the end of the step.)
    """


def _separate_host(offload: Any, storages: LiveStorages) -> None:
    """
    Makes the package's helper module `offload` copy between host and device as if the
    device had memory of its own, although all tensors are on the CPU here.
    """

    def away(x: torch.Tensor) -> Any:
        storages.on_device = False
        there = torch.empty_like(x)
        storages.on_device = True
        return offload.Offloaded(there, x.device)

    def back(x: Any) -> torch.Tensor:
        return torch.empty_like(x.tensor)

    def load(states: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.empty_like(state) for state in states]

    def store(values: object, states: object) -> None:
        """Does nothing, because states stay on the host."""

    offload.offload, offload.fetch, offload.load, offload.store = (
        away,
        back,
        load,
        store,
    )


def _argument(program: Any, runtime: Any, index: int) -> object:
    """
    Returns the argument `index` of a program, with the shape of this process's part.
    """
    spec = program.ARGUMENTS[index]
    if spec.default is not None:
        return spec.default
    if spec.shape is None:
        sys.exit(
            f"error: the memory of {spec.name!r} cannot be counted, as its shape is not "
            f"known; give the program fixed shapes"
        )
    shape = runtime.local_shape(spec, program.MESHES.get(spec.mesh))
    return torch.empty(shape, dtype=spec.dtype)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", required=True)
    parser.add_argument("--output", required=True)
    options, _ = parser.parse_known_args()
    package = load_package(options.package, "counted")
    file = str(Path(options.package) / "program.py")
    found: list[dict[str, Any]] = []
    for rank in options.ranks:
        try:
            storages = count(package, rank, file)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            sys.exit(
                f"error: the memory of rank {rank} cannot be counted without values: "
                f"shapes or steps of the program depend on what {error.func} computes"
            )
        held = {str(line): size for line, size in storages.at_peak.items() if size}
        found.append({"peak": storages.peak, "held": held})
    write_text(options.output, json.dumps(found))


if __name__ == "__main__":
    main()
