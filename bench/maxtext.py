"""
Published steps of MaxText on H100, beside what the simulator predicts:

    python bench/maxtext.py

The published figures are in `bench/data/maxtext.json`, with their sources. Nothing is fitted
to them: XLA makes kernels of elementwise ops, as the profile `H100-compiled` has them, and FSDP
gathers parameters beside the computation.
"""

from __future__ import annotations

import json
from pathlib import Path

from measured.published import Published
from report import table

DATA = json.loads((Path(__file__).parent / "data" / "maxtext.json").read_text("utf-8"))


def section() -> str:
    """Returns the section of `docs/benchmarks.md`."""
    rows: list[list[str]] = []
    for record in DATA["records"]:
        measured, found = record["measured_s"], Published(record)()
        error = f"{found / measured - 1:+.1%}".replace("%", " %")
        rows.append([record["name"], f"{measured:.3g} s", f"{found:.3g} s", error])
    head = ["run", "measured", "simulated", "error"]
    return f"""## MaxText

Steps of MaxText (JAX) on DGX H100 that NVIDIA published (`bench/data/maxtext.json` has the sources), with the profile `H100-compiled`, ZeRO 3 and
overlap; nothing is fitted. Its policy `minimal_flash` is `products` here. `save_qkv_proj` keeps the results of three products of a layer, which no
policy of ours names: `full` computes them again too, about 2 % of the step.

{table(head, rows)}"""


if __name__ == "__main__":
    print(section())
