"""
`parallelize` on one process with random options, right and wrong ones: the module computes
what the plain one does, or an error says in one paragraph what is wrong.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from hypothesis import strategies as st
from support.random_programs import Draw
from torch import nn

from distir.errors import DistIRError
from distir.parallel.parallelize import parallelize

EXAMPLES = 4
"""Of a round: each exports and compiles a module."""

_DEGREES = [1, 1, 1, 1, 1, 1, 1, 1, 0, -1, 2, 2**40]
_CHOICES: dict[str, list[Any]] = {
    **dict.fromkeys("rdectp", _DEGREES),
    "k": [1, 1, 2, 3, 4, 0, -2, 2**40],
    "zero": [0, 1, 2, 3, 4, -1],
    "no_sync": [False, True],
    "checkpoint": ["none", "full", "1", "-1", "nan", "all", ""],
    "schedule": [None, "1f1b", "gpipe", "interleaved", "missing.csv", ""],
    "sequence_parallel": [False, True],
    "token_dispatch": ["auto", "gather", "all-to-all", "none"],
    "context": ["gather", "ring", "rings"],
    "context_order": ["contiguous", "cyclic", ""],
    "overlap": [False, True],
    "buckets": [True, False],
    "fused_attention": [True, False],
    "equal_features": [False, True],
    "dtype": [None, "f32", "bf16", "f16", "f64", "", torch.bfloat16, torch.int8],
    "float8": [None, "tensor", "row", "rows"],
    "batch_norm": ["batch", "device", "none"],
    "cluster": ["cpu", "dgx2", "", "no-such-cluster", "dgx2.mlir"],
    "loss": [None, "mse", "cross_entropy", "msee"],
    "seed": [0, -1, 2**63],
    "plan": [None, "no-such-plan.json"],
}
"""Values of each option, some of them wrong; the first is the default, or as good."""


class Wrong(AssertionError):
    """A module computes something else, or an error is of another kind than it should be."""


def prepare() -> None:
    """Rounds are forked, so that nothing may start threads."""
    torch.set_num_threads(1)


def _options(draw: Draw) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(_CHOICES)), max_size=4, unique=True))
    return {name: draw(st.sampled_from(_CHOICES[name])) for name in names}


def case(draw: Draw) -> list[str]:
    """A small module with some options; what came of it."""
    options = _options(draw)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [_try(options)]
    except BaseException as error:
        error.add_note(f"parallelize(module, (x,), **{options!r})")
        raise


def _try(options: dict[str, Any]) -> str:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    x = torch.randn(4, 8)
    plain = module(x)
    if options.get("loss") is None:
        options = {**options, "loss": lambda y, labels: (y - labels).square().mean()}
    labels = torch.zeros(4, dtype=torch.int64)
    given = labels if options["loss"] == "cross_entropy" else torch.zeros(4, 8)
    try:
        found = parallelize(module, (x,), **options)
        found.train()
        loss = found(x, given)
        loss.backward()
    except DistIRError as error:
        text = str(error)
        if not text or "\n" in text.strip() or "internal error" in text:
            raise Wrong(f"not one paragraph: {text!r}") from error
        return "refused"
    expected = (
        nn.functional.cross_entropy(plain, given)
        if options["loss"] == "cross_entropy"
        else nn.functional.mse_loss(plain, given)
    )
    narrow = options.get("dtype") not in (None, "f32") or options.get("float8")
    if not torch.allclose(loss.detach(), expected, rtol=0.1 if narrow else 1e-4):
        raise Wrong(f"the loss is {loss.item()} instead of {expected.item()}")
    return "equal"
