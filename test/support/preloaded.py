"""
Warms up the process that ranks are forked from, so that no rank has to: imports the modules
of models and trainers, and compiles a small one to its package, which loads everything on the
way and PyTorch's library of functions for its exporter. As all ranks have loaded the same
files, they find the programs of each other in the cache.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec

import torch

from support.compiled_once import compile_texts_once

compile_texts_once()
# Processes that are forked may not use threads that were started before.
torch.set_num_threads(1)

import torch.distributed.checkpoint.state_dict  # noqa: E402  # pyright: ignore[reportUnusedImport]
import torch.distributed.fsdp  # noqa: E402  # pyright: ignore[reportUnusedImport]
import torch.distributed.tensor.parallel  # noqa: E402  # pyright: ignore[reportUnusedImport]
from torch import nn  # noqa: E402

from distir.hardware import load_cluster  # noqa: E402
from distir.parallel import parallelize  # noqa: E402, F401  # pyright: ignore[reportUnusedImport]
from distir.parallel.compilation import (  # noqa: E402
    Request,
    evaluation_package,
    training_package,
)
from distir.planning.distribution.options import DistributionOptions  # noqa: E402
from distir.tools.commands import distribute  # noqa: E402, F401  # pyright: ignore[reportUnusedImport]
from support import parallel_families, parallel_scripts  # noqa: E402
from support.thoroughness import IS_THOROUGH  # noqa: E402

_RUNS = (
    "optimizer_runs",
    "eager_scripts",
    "parallel_adapters",
    "parallel_autocast",
    "parallel_guards",
    "parallel_inputs",
    "parallel_nan",
    "parallel_opaque",
    "parallel_options",
    "parallel_outside",
    "parallel_saving",
    "parallel_shapes",
    "parallel_trust",
    "parallel_uses",
    "trainer_models",
)
"""The modules of this package with functions that ranks run."""

_TRAINERS = {
    "accelerate": (
        "support.accelerate_runs",
        "support.hugging_face_runs",
        "distir.trainers.accelerator",
        "distir.trainers.hugging_face",
    ),
    "lightning": ("support.lightning_runs", "distir.trainers.strategy"),
}
"""Modules that need a library that may not be there, by its name."""


def _load() -> None:
    for name in _RUNS:
        import_module(f"support.{name}")
    for library, names in _TRAINERS.items():
        if find_spec(library):
            for name in names:
                import_module(name)
    for name, family in parallel_families.FAMILIES.items():
        if IS_THOROUGH or name in parallel_families.QUICK:
            family()
    parallel_scripts.tiny_gpt()
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    options = DistributionOptions(d=2, t=2, zero=1, buckets=True)
    piped = replace(options, zero=3, t=1, p=2, k=2)
    for given in (options, piped):
        request = Request("mse", str(load_cluster("cpu", 4)), given)
        training_package(module, (torch.ones(4, 4),), {}, request)
        evaluation_package(module, (torch.ones(4, 4),), {}, request)


gc.disable()
_load()
# What is loaded stays, so that ranks need not search it for garbage.
gc.freeze()
gc.enable()
gc.set_threshold(100_000, 20, 20)
