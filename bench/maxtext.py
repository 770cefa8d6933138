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
        measured, step = record["measured_s"], Published(record)()
        found = step.step_time_s
        error = f"{found / measured - 1:+.1%}".replace("%", " %")
        peak = step.seconds_at_peak[0]
        rows.append(
            [
                record["name"],
                f"{measured:.3g} s",
                f"{found:.3g} s",
                error,
                f"{step.compute_s[0]:.3g} s",
                f"{step.exposed_communication_s[0]:.3g} s",
                f"{peak / measured:.0%}".replace("%", " %"),
            ]
        )
    head = ["run", "measured", "simulated", "error", "computing", "waiting", "at peak"]
    return f"""## MaxText

Steps of MaxText (JAX) on DGX H100 that NVIDIA published (`bench/data/maxtext.json` has the sources), with the profile `H100-compiled`, ZeRO 3 and
overlap; nothing is fitted. Its policy `minimal_flash` is `products` here. `save_qkv_proj` keeps the results of three products of a layer, which no
policy of ours names: `full` computes them again too, about 2 % of the step.

*Computing* and *waiting* (for communication that nothing hides) are of the simulated step; *at peak* is the share of the measured step that its
products take at the peak of the device.

{table(head, rows)}"""


if __name__ == "__main__":
    print(section())
