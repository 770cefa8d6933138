"""
The peak memory of the processes of a package, counted from the tensors that they ask
PyTorch for. The count computes and sends nothing, so one process of this machine can
count for packages of any size.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distir.errors import DistIRError
from distir.launch.packages import Spawner, read_manifest, run_script


@dataclass(frozen=True)
class CountedMemory:
    """
    The memory of the processes `ranks`, which run the same class of `program.py`.

    `peak` is the largest number of bytes held at one time. `held` gives the part of the
    peak that each line of `program.py` allocated; line 0 stands for arguments and
    constants, which the process holds all the time.
    """

    ranks: tuple[int, ...]
    peak: int
    held: Mapping[int, int]


def count_memory(
    package: str | Path, *, spawner: Spawner | None = None, timeout_s: float = 600.0
) -> list[CountedMemory]:
    """
    Returns the memory of one call of the program, for each class of processes of a
    package. Only tensors are counted, not the working memory of kernels or the overhead
    of allocators. `spawner`, if given, is used and left running. Raises DistIRError if
    the memory depends on computed values, or if the count takes longer than `timeout_s`
    seconds.
    """
    package = Path(package).resolve()
    classes = [tuple(map(int, ranks)) for ranks in read_manifest(package)["classes"]]
    own = spawner is None
    spawner = spawner or Spawner()
    try:
        with tempfile.TemporaryDirectory(prefix="distir-") as name:
            output = Path(name) / "memory.json"
            first = [str(ranks[0]) for ranks in classes]
            run_script(
                Path(__file__).with_name("memory_rank.py"),
                ["--package", str(package), "--output", str(output), "--ranks", *first],
                1,
                Path(name),
                backend="gloo",
                timeout_s=timeout_s,
                progress=None,
                spawner=spawner,
                imports=("torch._dynamo",),  # which tensors without values load
            )
            found = json.loads(output.read_text(encoding="utf-8"))
    except OSError as error:
        raise DistIRError(f"counting memory left no result: {error}") from error
    finally:
        if own:
            spawner.kill()
    return [
        CountedMemory(
            ranks, each["peak"], {int(line): n for line, n in each["held"].items()}
        )
        for ranks, each in zip(classes, found, strict=True)
    ]
