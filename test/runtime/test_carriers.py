"""Every element type is added and compared on gloo as torch does it in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from distir.runtime.communication import collectives

RANKS = 3
SPECIAL = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5, -1.5, 0.25]
FLOATS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def terms(dtype: torch.dtype, reduction: str) -> torch.Tensor:
    """What each process holds: a row for each."""
    if dtype == torch.bool:
        rows = [[(at >> rank) & 1 for at in range(8)] for rank in range(RANKS)]
        return torch.tensor(rows) == 1
    if dtype in INTEGERS:
        bounds = torch.iinfo(dtype)
        least, most = bounds.min, bounds.max
        rows = [
            [least, most, 0, 1, 7, most, least, 2],
            [most, 1, 0, 2, 5, most, least + 1, 3],
            [0, most - 1, 1, 1, 6, most, 3, 4],
        ]
        return torch.tensor(rows, dtype=dtype)
    # Each process holds a NaN where the others hold other numbers.
    rows = [SPECIAL[-rank:] + SPECIAL[:-rank] for rank in range(RANKS)]
    kept = [[x if x == x or reduction != "sum" else 3.0 for x in row] for row in rows]
    if reduction == "sum":
        kept = [[x if abs(x) < 9 else 4.0 for x in row] for row in kept]
    return torch.tensor(kept, dtype=torch.float64).to(dtype)


def expected(rows: torch.Tensor, reduction: str) -> list[Any]:
    """The reduction, in Python's numbers; integers wrap around, a NaN stays."""
    columns = list(zip(*rows.tolist(), strict=True))
    if rows.dtype == torch.bool:
        return [min(c) if reduction == "min" else max(c) for c in columns]
    if reduction != "sum":
        choose = max if reduction == "max" else min
        nan = float("nan")
        return [nan if any(x != x for x in c) else choose(c) for c in columns]
    if rows.dtype not in INTEGERS:
        return torch.tensor([sum(c) for c in columns]).to(rows.dtype).tolist()
    bounds = torch.iinfo(rows.dtype)
    span = bounds.max - bounds.min + 1
    return [(sum(c) - bounds.min) % span + bounds.min for c in columns]


def work(rank: int, folder: str) -> None:
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    group = collectives.Group(range(RANKS), None)
    found: dict[tuple[str, str, str], list[Any]] = {}
    for dtype in (torch.bool, *INTEGERS, *FLOATS):
        for reduction in ("sum", "max", "min"):
            # Three parts of eight; not contiguous.
            x = terms(dtype, reduction)[rank].repeat(RANKS, 1).t().contiguous().t()
            before = x.clone()
            key = str(dtype), reduction
            whole = collectives.all_reduce(x, group, reduction)
            part = collectives.reduce_scatter(x, group, 0, reduction)
            rooted = collectives.reduce(x, group, 0, reduction)
            assert {whole.dtype, part.dtype, rooted.dtype} == {dtype}
            same = x.contiguous().view(torch.uint8) == before.contiguous().view(
                torch.uint8
            )
            assert same.all(), "the operand was written to"
            found[*key, "all_reduce"] = whole[1].tolist()
            found[*key, "reduce_scatter"] = part[0].tolist()
            if rank == 0:
                found[*key, "reduce"] = rooted[2].tolist()
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, list[Any]]]:
    """What each process got, by type, reduction and collective."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    processes.start_processes(work, (str(folder),), RANKS, start_method="fork")
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS, *FLOATS], ids=str)
def test_reductions_of_every_type(
    found: list[dict[Any, list[Any]]], dtype: torch.dtype, reduction: str
) -> None:
    right = expected(terms(dtype, reduction), reduction)
    for rank, results in enumerate(found):
        for (kind, how, op), values in results.items():
            if (kind, how) == (str(dtype), reduction):
                assert repr(values) == repr(right) or values == pytest.approx(
                    right, rel=0, abs=0, nan_ok=True
                ), (rank, op)
