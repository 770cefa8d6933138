"""`distir.parallelize`, which makes a module of PyTorch run distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.parallel.calling import Inputs
from distir.parallel.compilation import (
    Request,
    evaluation_package,
    training_package,
)
from distir.parallel.content import content_key
from distir.parallel.losses import Loss
from distir.parallel.packages import Package, shared_package
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.rank_program import RankProgram
from distir.planning.distribution import DistributionOptions
from distir.planning.found_plan import FoundPlan

CLUSTER = "cpu"
"""The cluster that modules are distributed for by default."""


def parallelize(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Loss = None,
    cluster: str = CLUSTER,
    d: int = 1,
    t: int = 1,
    p: int = 1,
    k: int = 1,
    zero: int = 0,
    checkpoint: str = "none",
    schedule: str | None = None,
    sequence_parallel: bool = False,
    overlap: bool = False,
    buckets: bool = True,
    plan: FoundPlan | str | Path | None = None,
    seed: int = 0,
) -> ParallelModule:
    """
    Returns the module distributed over the processes that call this: all of them, under
    `torchrun`, or a single one. The result is a `ParallelModule`.

    - `args`, `kwargs`: example inputs of the global batch; their shapes, and everything in
      them that is no tensor, become fixed.
    - `loss`: `cross_entropy` (logits `[..., V]`, integer labels `[...]`), `mse`, a function
      of the module's output and the labels, or None if the module's output is the loss.
    - `cluster`: a built-in cluster or the file of one, for decisions that depend on its
      speed.
    - `d`, `t`, `p`: degrees of data, tensor and pipeline parallelism; there are d x t x p
      processes. `k`: micro-batches; `schedule`: of the pipeline.
    - `zero`: the ZeRO stage; `checkpoint`, `sequence_parallel`, `overlap`, `buckets`: as in
      `distir distribute`.
    - `plan`: what `distir.search` found for this module, loss and batch, or the file that
      it was saved to: instead of `cluster` and all of the options above.
    - `seed`: for the values of parameters that are on the meta device.

    Raises DistIRError, on every rank.
    """
    _join()
    kwargs = dict(kwargs or {})
    options = DistributionOptions(
        d=d,
        t=t,
        p=p,
        k=k,
        zero=zero,
        checkpoint=checkpoint,
        schedule=schedule or "",
        sequence_parallel=sequence_parallel,
        overlap=overlap,
        buckets=buckets,
    )
    if plan is not None:
        request = _planned(loss, cluster, options, plan)
    else:
        grown = load_cluster(cluster, d * t * p)
        request = Request(loss, str(grown), options)
    if request.devices != dist.get_world_size():
        raise DistIRError(
            f"parallelize: {_degrees(request.distribution)} needs {request.devices} "
            f"processes, but there are {dist.get_world_size()}; start torchrun with "
            f"--nproc-per-node {request.devices}, or choose other degrees"
        )
    inputs = Inputs(module, args, kwargs)
    device = _device()

    def program(kind: str, make: Any) -> RankProgram:
        key = content_key(kind, module, args, kwargs, request)
        folder = shared_package(key, lambda: make(module, args, kwargs, request))
        return RankProgram(Package(folder), device)

    return ParallelModule(
        module,
        inputs,
        program("training", training_package),
        lambda: program("evaluation", evaluation_package),
        seed,
    )


def _planned(
    loss: Loss, cluster: str, options: DistributionOptions, plan: FoundPlan | str | Path
) -> Request:
    """
    Returns the request of a plan, with which no other options may be given. Raises
    DistIRError.
    """
    plain = DistributionOptions()
    given = [
        name for name, value in vars(options).items() if value != vars(plain)[name]
    ]
    if cluster != CLUSTER:
        given.append("cluster")
    if given:
        raise DistIRError(
            f"parallelize: the plan says how to distribute, so that {', '.join(given)} "
            f"cannot be given beside plan=; leave out one or the other"
        )
    found = plan if isinstance(plan, FoundPlan) else FoundPlan.load(plan)
    return Request(loss, found.cluster, found)


def _degrees(distribution: DistributionOptions | FoundPlan) -> str:
    """Says how many processes are asked for, and by what."""
    if isinstance(distribution, FoundPlan):
        return f"the plan ({distribution.result.plan})"
    d, t, p = distribution.d, distribution.t, distribution.p
    return f"d x t x p = {d} x {t} x {p}"


def _join() -> None:
    """Joins the other processes, unless the script has done so."""
    if dist.is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if dist.is_torchelastic_launched():
        dist.init_process_group(backend)
    else:
        address = "tcp://127.0.0.1:0"
        dist.init_process_group(backend, init_method=address, rank=0, world_size=1)


def _device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
