"""
How much memory the simulator says that published runs took:

    python bench/memory.py --data DIR [--sample 24]

If DIR holds the measurements of llm-foundry (`bench/measured/mpt.py` cites their source):
they report no memory, but they ran, with micro-batches that were chosen as large as fits. So
the reserved memory should be below the device's memory, and not far below. A step here is
one micro-batch, whose gradients are reduced and scattered at once as FSDP's are.

If DIR holds those of nanotron (`bench/measured/published.py`), which report the memory that
PyTorch had allocated: the simulated peak beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from accuracy import spread
from measured import mpt, published
from measured.clusters import cluster
from measured.rows import Row
from measured.training import Step, simulated
from report import table

CAPACITY = {"a100_40gb": 42.3e9, "a100_80gb": 85.0e9, "h100_80gb": 85.0e9}
"""What PyTorch reports as the memory of these devices: 39.4, 79.2 and 79.1 GiB."""


@dataclass(frozen=True)
class Held:
    """A row, and the bytes allocated and reserved on each device as fractions of its memory."""

    row: Row
    allocated: float
    reserved: float


def held(row: Row) -> Held:
    """Simulates one micro-batch of a row."""
    step = row.predict
    assert isinstance(step, Step)
    parallelism = replace(step.parallelism, k=1, overlap=False)
    batch = step.batch // step.parallelism.k
    on = cluster(step.gpu, parallelism.devices)
    found = simulated(step.model, batch, parallelism, on, step.profile)
    capacity = CAPACITY[step.gpu]
    return Held(
        row,
        max(found.peak_memory_bytes) / capacity,
        max(found.reserved_memory_bytes) / capacity,
    )


def beside_nanotron(path: Path) -> None:
    """Prints the simulated peak of each nanotron run beside the memory it allocated."""
    lines: list[list[str]] = []
    errors: list[float] = []
    for record in json.loads(path.read_text("utf-8"))["records"]:
        peak = max(published.Published(record).simulation().peak_memory_bytes) / 2**20
        measured = record["measured_allocated_mib"]
        errors.append(peak / measured - 1)
        name, gib = record["name"], f"{measured / 1024:.1f} GiB"
        lines.append([name, gib, f"{peak / 1024:.1f} GiB", f"{errors[-1]:+.1%}"])
    print(table(["run", "allocated", "simulated", "error"], lines))
    sizes = [abs(e) for e in errors]
    print(f"\nmean {statistics.mean(sizes):.1%}, at most {max(sizes):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the file")
    parser.add_argument("--sample", type=int, default=24, help="so many of the rows")
    arguments = parser.parse_args()
    for path in arguments.data.glob("nanotron*.json"):
        beside_nanotron(path)
    for path in arguments.data.glob("mpt_fsdp*.json"):
        beside_capacities(path, arguments.sample)


def beside_capacities(path: Path, sample: int) -> None:
    """Prints what runs of llm-foundry would reserve beside what their devices have."""
    rows = spread(mpt.load(json.loads(path.read_text("utf-8"))))[:sample]
    found = [held(row) for row in rows]
    lines = [[h.row.name, f"{h.allocated:.0%}", f"{h.reserved:.0%}"] for h in found]
    print(table(["run", "allocated", "reserved"], lines))
    reserved = [h.reserved for h in found]
    print(
        f"\n{sum(r <= 1 for r in reserved)} of {len(found)} runs fit; reserved: median "
        f"{statistics.median(reserved):.0%}, from {min(reserved):.0%} to {max(reserved):.0%}"
    )


if __name__ == "__main__":
    main()
