"""`distir.parallelize`, which makes a module of PyTorch run distributed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn

from distir.errors import DistIRError, one_of
from distir.frontends.torch.trust import Trust
from distir.hardware import load_cluster
from distir.parallel.autocast import AskedTypes
from distir.parallel.calling import Inputs, Labels
from distir.parallel.compilation import (
    Request,
    UserKernels,
    evaluation_package,
    tensors_of,
    training_package,
    validation_package,
)
from distir.parallel.content import content_key
from distir.parallel.forward_options import ForwardOptions, Script
from distir.parallel.losses import Loss, example_labels
from distir.parallel.packages import Package, shared_package
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.rank_program import RankProgram
from distir.parallel.shapes import Example, SharedShapes
from distir.parallel.step_check import StepCheck, check_copies
from distir.parallel.steps import Steps, training
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.saved_plan import SavedPlan
from distir.runtime.runtime import ProgramError, check_compiler
from distir.tools.arguments.distribution import distribution_options
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import ParallelizeOptions

_DEGREE = re.compile(r"(?<![\w-])-([rdectpk])\b(?!-)")
"""The option of a command for a degree of parallelism or the number of micro-batches."""

_OPTIONS = {
    "--batch-norm-micro-batches": 'batch_norm="device"',
    "--float8 row-gw-hp": 'float8="row-gw-hp"',
    "equal_features (--equal-features)": "equal_features=True",
}
"""Other options of commands, as arguments."""


def in_words_of_python(message: str) -> str:
    """Returns a message with the arguments of `parallelize` instead of options of commands."""
    for option, argument in _OPTIONS.items():
        message = message.replace(option, argument)
    return _DEGREE.sub(r"\1=", message)


@contextlib.contextmanager
def in_python() -> Generator[None]:
    """
    A context manager that makes errors speak of the arguments of `parallelize`. Raises
    DistIRError.
    """
    try:
        yield
    except DistIRError as error:
        # The cause stays; a chain of two errors that say the same would not help.
        raise DistIRError(in_words_of_python(str(error))) from error.__cause__


CLUSTER = "cpu"
"""The cluster that modules are distributed for by default."""

BATCH_NORMS = ("batch", "device")
"""What batch normalisation may take the statistics of; the default first."""

CHECKS = ("import", "off", "step")
"""The comparisons with the module; the default first."""


def parallelize(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Loss = None,
    labels: Any = None,
    cluster: str = CLUSTER,
    schedule: str | Path | Script | None = None,
    fused_attention: bool = True,
    equal_features: bool = False,
    dtype: str | torch.dtype | None = None,
    float8: str | None = None,
    kernels: Sequence[str | Path] = (),
    batch_norm: str = BATCH_NORMS[0],
    plan: SavedPlan | str | Path | None = None,
    seed: int = 0,
    check: str = CHECKS[0],
    allow: Sequence[str] = (),
    compiled: bool = False,
    shapes: Sequence[Sequence[Any]] = (),
    max_programs: int = 8,
    detect_nan: bool = False,
    **distribution: Unpack[ParallelizeOptions],
) -> ParallelModule:
    """
    Returns the module distributed over the processes that call this: all of them, under
    `torchrun`, or a single one. The result is a `ParallelModule`.

    - `args`, `kwargs`: example inputs of the global batch. Everything in them that is no tensor
      becomes fixed. For other shapes, such as another number of samples or another length, a
      call compiles another program over the same parameters, once for each shape. If the
      samples of a batch cannot be divided evenly among the ranks, each of them is taken as
      often as makes it even, which leaves the mean as it is.
    - `loss`: `cross_entropy` (logits `[..., V]`, integer labels `[...]`, of which -100 does
      not count), `mse`, a function of the module's output and the labels, or None if the
      module's output is the loss.
    - `labels`: an example of the global batch's labels, a tensor or several in a tuple, list
      or dictionary, where the shapes that a function takes do not tell.
    - `cluster`: a built-in cluster or the file of one, for decisions that depend on its speed.
    - `schedule`: the name of the pipeline's schedule; or a script that says how the model is
      to run (`docs/schedules.md`): a function, or the file of one.
    - `fused_attention`: whether attention that a module writes out becomes one op.
    - `equal_features`: says that each sample has as many places for features of images or
      sounds as the module gives it (`masked_scatter`), which models with such features need
      for micro-batches. A sample that has another number of places becomes NaN.
    - `dtype`: `bf16`, `f16` or `f32`, the type in which the model computes, but for its
      loss. Parameters keep their type, as what the optimizer updates, and are cast once a step;
      gradients have the type of their parameters. In f16 the loss is scaled: a step whose
      gradients overflow is computed again with a smaller scale.
    - `float8`: `tensor`, `row` or `row-gw-hp`, as in `distir import`: products of activations
      with parameters, but for the head, are in 8-bit floats that are scaled like that.
    - `kernels`: files MODULE.py of the kernels that a schedule names; DistIR's own need none.
    - `batch_norm`: what batch normalisation in training takes the statistics of: the whole
      `batch`, so that the result is that of one process (as with PyTorch's SyncBatchNorm),
      or each `device`'s own samples, in each micro-batch, as in DistributedDataParallel.
    - `plan`: what `distir.search` found for this module, loss and batch, or the file that
      it was saved to: instead of `cluster`, the degrees and all that distributes.
    - `seed`: of the values of parameters that have none: on the meta device, or fake.
    - `check`: `import` runs the program that is made of the module beside it, on the example
      inputs and on others, before anything is compiled (see `import_torch`); `off` does
      not; `step` also compares the loss and the gradients of the first step with those of
      the module itself on one process.
    - `allow`: the differences from the module that are accepted: `control-flow`,
      `python-random`, `custom-backward`, `mismatch` (`trust.ACCEPTED`).
    - `compiled`: whether `torch.compile` makes the kernels of the program's functions, which
      takes a minute at the first step.
    - `shapes`: further global batches that will come, whose programs are compiled at once: for
      each the positional arguments of the module and, with a loss, the labels behind them.
      Their values do not matter.
    - `max_programs`: the largest number of shapes that calls may have; another one is an error.
    - `detect_nan`: a step whose loss or gradients have NaN runs again, op by op, and is an error
      that names the module in which NaN appears first. Each step then waits for its results.
    - `distribution`: options of `distir distribute`. `r`, `d`, `e`, `c`, `t`, `p`: degrees of
      parallelism, whose product is the number of processes; `k`: micro-batches; `zero`,
      `no_sync`, `checkpoint`, `sequence_parallel`, `overlap`, ... In hybrid sharding each of
      `r` groups of processes, such as nodes, holds all parameters, gradients and states which
      ZeRO splits over its `d`.

    Raises DistIRError, on every rank.
    """
    kwargs = dict(kwargs or {})
    own = one_of("batch_norm", batch_norm, BATCH_NORMS, "parallelize") == "device"
    one_of("check", check, CHECKS, "parallelize")
    trust = Trust.of(check != "off", allow)
    other = {"dtype": dtype, "float8": float8, 'batch_norm="device"': own or None}
    if check == "step" and (given := [n for n, v in other.items() if v is not None]):
        raise DistIRError(
            f'parallelize: check="step" compares with the module as PyTorch runs it, which '
            f'{given[0]} changes; check a step without that, or take check="import"'
        )
    forward, pipeline = ForwardOptions.of(dtype, float8, fused_attention, schedule)
    forward = replace(forward, equal_features=equal_features)
    given = command_options(
        "distribute",
        "parallelize",
        ["module", "-o", "-"],
        distribution,
        ParallelizeOptions.__annotations__,
    )
    options = replace(distribution_options(given), schedule=pipeline)
    if plan is not None:
        request = _planned(loss, cluster, options, forward, plan)
    else:
        grown = load_cluster(cluster, options.devices)
        request = Request(loss, str(grown), options, forward)
    files = tuple(map(UserKernels.of, kernels))
    request = replace(
        request,
        own_statistics=own,
        kernels=files,
        labels=example_labels(loss, labels),
        trust=trust,
        compiled=compiled,
    )
    _join()
    if request.devices != dist.get_world_size():
        raise DistIRError(
            f"parallelize: {_degrees(request.distribution)} needs {request.devices} "
            f"processes, but there are {dist.get_world_size()}; start torchrun with "
            f"--nproc-per-node {request.devices}, or choose other degrees"
        )
    inputs = Inputs(module, args, kwargs)
    device = _device()
    if compiled:
        try:
            check_compiler("nccl" if device.type == "cuda" else "gloo")
        except ProgramError as error:
            raise DistIRError(f"parallelize, compiled=True: {error}") from error
    asked = AskedTypes(device.type, forward.dtype)

    def program(
        kind: str,
        what: Any,
        wanted: Request,
        given: Example,
        make: Callable[[], dict[str, bytes]],
    ) -> RankProgram:
        call = given.args, given.kwargs
        with in_python():
            folder = shared_package(
                lambda: content_key(kind, module, *call, (wanted, what, given.samples)),
                make,
            )
        return RankProgram(Package(folder), device)

    base = Example(tuple(args), kwargs, request.labels)

    def step(
        trained: frozenset[str],
        inputs: frozenset[str] | None,
        autocast: str | None,
        example: Example | None = None,
    ) -> RankProgram:
        own = None if inputs is None else tuple(sorted(inputs))
        wanted, given = request.autocast_to(autocast), example or base
        if callable(loss) and example is not None:
            labels = example_labels(loss, example.labels)
            wanted = replace(wanted, labels=labels)

        def make() -> dict[str, bytes]:
            check_copies(module, loss, given)
            return training_package(module, given.args, given.kwargs, wanted, own)

        with training(module, trained):
            return program(
                "training", needed if own is None else own, wanted, given, make
            )

    def evaluation(
        autocast: str | None, has_loss: bool, example: Example | None
    ) -> RankProgram:
        wanted, given = request.autocast_to(autocast), example or base
        if has_loss and callable(loss) and example is not None:
            labels = example_labels(loss, example.labels)
            wanted = replace(wanted, labels=labels)
        package = validation_package if has_loss else evaluation_package

        def make() -> dict[str, bytes]:
            check_copies(module, loss, given)
            return package(module, given.args, given.kwargs, wanted)

        return program(
            "validation" if has_loss else "evaluation", None, wanted, given, make
        )

    needed = [t.requires_grad for t in tensors_of((tuple(args), kwargs))]
    if max_programs < 1:
        raise DistIRError(
            f"parallelize: max_programs is {max_programs}, and one is needed for the "
            f"example; give at least 1"
        )
    parallel = ParallelModule(
        module,
        inputs,
        Labels(request.labels),
        Steps(module, step, any(needed), asked.now("parallelize")),
        evaluation,
        asked,
        seed,
        SharedShapes(request.micro_batches),
        max_programs,
        detect_nan,
        request.statistics.micro_batches,
        StepCheck(module, loss) if check == "step" else None,
    )
    for other in shapes:
        parallel.prepare(*other)
    return parallel


def _planned(
    loss: Loss,
    cluster: str,
    options: DistributionOptions,
    forward: ForwardOptions,
    plan: SavedPlan | str | Path,
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
    found = plan if isinstance(plan, SavedPlan) else SavedPlan.load(plan)
    return Request(loss, found.cluster, found, forward)


def _degrees(distribution: DistributionOptions | SavedPlan) -> str:
    """Says how many processes are asked for, and by what."""
    if isinstance(distribution, SavedPlan):
        return f"the plan ({distribution.result.plan})"
    axes = [
        axis
        for axis in ("r", "d", "e", "c", "t", "p")
        if axis not in ("r", "e", "c") or getattr(distribution, axis) > 1
    ]
    sizes = (str(getattr(distribution, axis)) for axis in axes)
    return f"{' x '.join(axes)} = {' x '.join(sizes)}"


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
    """
    Returns where this process computes: on its GPU if the processes talk by NCCL, also
    beside another backend for CPUs. The GPU is the one that the script has chosen or, if
    nothing used CUDA yet, the one of this process among those of its node. Raises
    DistIRError if there is none.
    """
    if "nccl" not in dist.get_backend_config():
        return torch.device("cpu")
    if not torch.cuda.is_initialized():
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise DistIRError(
                f"parallelize: nccl needs one GPU per process: process {local} of this node "
                f"has none, as there are {count}; start torchrun with --nproc-per-node "
                f'{count}, or join with torch.distributed.init_process_group("gloo")'
            )
        torch.cuda.set_device(local)
    return torch.device("cuda", torch.cuda.current_device())
