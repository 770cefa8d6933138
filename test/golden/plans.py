"""The plans of the golden record, and which models get which."""

from __future__ import annotations

from typing import Any

from golden.models import MODELS

Options = dict[str, Any]

CLUSTERS = ("dgx-a100", "dgx2", "dgx-h100")
"""Plans take turns with these."""

PLANS: tuple[Options, ...] = (
    dict(d=8),
    dict(t=4),
    dict(d=2, t=2),
    dict(p=2, k=4),
    dict(d=2, zero=1),
    dict(d=4, zero=2, k=2),
    dict(d=4, zero=3),
    dict(d=2, t=2, zero=3, overlap=True),
    dict(d=2, t=2, p=2, k=4, zero=1),
    dict(d=2, k=4, zero=2, no_sync=True),
    dict(r=2, d=2, zero=3),
    dict(t=4, sequence_parallel=True),
    dict(t=2, p=2, k=4, sequence_parallel=True, overlap=True),
    dict(c=2),
    dict(c=4, context="ring", context_order="cyclic"),
    dict(e=4),
    dict(e=2, d=2, token_dispatch="all-to-all"),
    dict(e=2, t=2, token_dispatch="gather", zero=1),
    dict(d=2, checkpoint="full"),
    dict(t=2, checkpoint="selective"),
    dict(d=2, k=2, checkpoint="products"),
    dict(p=2, k=4, checkpoint="full:0.5"),
    dict(d=2, checkpoint="offload"),
    dict(d=2, offload_states=True),
    dict(p=2, k=4, schedule="gpipe", blocking_sends=True),
    dict(p=2, k=4, schedule="interleaved-1f1b", chunks=4),
    dict(p=2, k=4, schedule="zb-h1"),
    dict(p=2, k=4, schedule="zbv", d=2),
    dict(p=4, k=8, schedule="1f1b", overlap="pp"),
    dict(p=2, k=4, stages="search"),
    dict(p=2, k=2, stages="uniform", t=2),
    dict(p=2, k=4, stage_meshes="d=2,t=2;d=4"),
    dict(d=4, buckets=False),
    dict(d=2, t=2, overlap=True),
    dict(t=8, pad="heads"),
    dict(d=2, t=2, k=4),
)
"""
Options of `distribute`. A plan that does not fit its model is recorded too: its error is a
result.
"""

_SHARE = 4
"""Every model gets one plan of so many, another selection than the model before."""


def planned() -> dict[str, tuple[str, str, Options]]:
    """Returns the model, the cluster and the options of each case, by its name."""
    found: dict[str, tuple[str, str, Options]] = {}
    for i, model in enumerate(MODELS):
        for j, options in enumerate(PLANS):
            if (i + j) % _SHARE == 0:
                words = " ".join(f"{name}={value}" for name, value in options.items())
                cluster = CLUSTERS[(i + j // _SHARE) % len(CLUSTERS)]
                found[f"{model} | {cluster} | {words}"] = model, cluster, options
    return found
