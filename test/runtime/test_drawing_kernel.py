"""The kernel of dropout for GPUs draws what PyTorch's ops draw, in Triton's interpreter."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from distir.runtime.layers import drawing_kernel, dropout

ROOT = Path(__file__).parents[2]


def part(rng: random.Random) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
    """Returns the shape of a part, that of the whole, and the splits between them."""
    local = [rng.randint(1, 6) for _ in range(rng.randint(1, 4))]
    shape, splits = list(local), []
    for _ in range(rng.randint(0, 3)):
        dim, parts = rng.randrange(len(local)), rng.randint(2, 3)
        runs = [r for r in range(1, shape[dim] + 1) if shape[dim] % r == 0]
        splits.append((dim, parts, rng.choice(runs)))
        shape[dim] *= parts
    return local, shape, splits


def position(place: int, rows: list[Any], coordinates: list[int]) -> int:
    """Returns a position in the whole tensor, as the kernel computes it from rows."""
    rest, index, found = place, place, 0
    for extent, parts, run, stride, at in rows:
        if extent:
            rest, index = divmod(rest, extent)
        if at >= 0:
            index = (index // run * parts + coordinates[at]) * run + index % run
        found += index * stride
    return found


def test_rows_say_where_elements_are() -> None:
    rng = random.Random(0)
    for _ in range(200):
        local, shape, splits = part(rng)
        coordinates = [rng.randrange(parts) for _, parts, _ in splits]
        rows = drawing_kernel.rows_of(local, shape, splits)
        places = torch.arange(math.prod(local))
        expected: Any = dropout._positions(  # pyright: ignore[reportPrivateUsage]
            places, local, shape, splits, coordinates
        )
        found = [position(int(place), rows, coordinates) for place in places]
        assert found == torch.as_tensor(expected).expand(len(places)).tolist()


def test_what_no_split_touches_is_one_row() -> None:
    shape = (8, 12, 64, 64)
    splits = [(0, 4, 2)]
    rows = drawing_kernel.rows_of((2, 12, 64, 64), shape, splits)
    assert rows == [(12 * 64 * 64, 1, 1, 1, -1), (2, 4, 2, 12 * 64 * 64, 0)]


INTERPRETED = """
import math, random, sys
import torch
sys.path.insert(0, "test/runtime")
from test_drawing_kernel import part
from distir.runtime.layers import drawing_kernel, dropout

rng, tried = random.Random(1), 0
for _ in range(60):
    local, shape, splits = part(rng)
    coordinates = [torch.tensor(rng.randrange(parts)) for _, parts, _ in splits]
    first = rng.randrange(math.prod(local))
    within = first, rng.randint(first + 1, math.prod(local))
    key = rng.randrange(2**32), rng.randrange(2**32)
    given = local, within, torch.tensor(rng.randrange(2**40)), coordinates, key
    given = *given, rng.randrange(2**32), shape, splits
    found = drawing_kernel.kept(*given)
    if found is not None:
        expected = torch.cat([keep for _, _, keep in dropout.kept(*given)])
        assert torch.equal(found, expected), given
        tried += 1
assert tried > 50, tried
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton")
def test_the_kernel_draws_the_same_bits() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=ROOT, env=environment, check=True
    )
