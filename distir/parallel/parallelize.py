"""`distir.parallelize`: makes a PyTorch module run distributed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
import torch.distributed as dist
from torch import nn

from distir.errors import DistIRError, one_of
from distir.frontends.serving import ServingSizes
from distir.frontends.torch.checks.communicating import live_modules
from distir.frontends.torch.trust import Trust
from distir.gradients.options import OUTSIDE
from distir.hardware import load_cluster
from distir.parallel.autocast import AskedTypes
from distir.parallel.calling import Inputs, Labels
from distir.parallel.compilation import (
    Request,
    evaluation_package,
    training_package,
    validation_package,
)
from distir.parallel.content import UserKernels, content_key, tensors_of
from distir.parallel.forward_options import ForwardOptions, Script
from distir.parallel.generation.programs import Generation, generation_package
from distir.parallel.losses import Loss, example_labels
from distir.parallel.packages import Package, shared_package
from distir.parallel.padding.check import PaddingCheck
from distir.parallel.padding.lengths import Lengths, Padding
from distir.parallel.parallel_module import ParallelModule
from distir.parallel.pretrained.weights import open_weights
from distir.parallel.rank_program import RankProgram
from distir.parallel.shapes import Example, SharedShapes
from distir.parallel.step_check import StepCheck, check_copies
from distir.parallel.steps import Steps, chosen_by, training
from distir.parallel.training.shared_tensors import SharedTensors
from distir.planning.distribution.entries import Chosen
from distir.planning.distribution.options import DistributionOptions
from distir.runtime.communication.meeting import join_ranks
from distir.runtime.runtime import ProgramError, check_compiler
from distir.tools.arguments.distribution import distribution_options
from distir.tools.arguments.python_options import command_options
from distir.tools.arguments.typed_options import ParallelizeOptions

if TYPE_CHECKING:
    from distir.planning.plans.saved_plan import SavedPlan

_DEGREE = re.compile(r"(?<![\w-])-([rdectpk])\b(?!-)")
"""
Matches a command's option for a degree of parallelism, or for the number of
micro-batches, such as `-t`.
"""

_OPTIONS = {
    "--batch-norm-micro-batches": 'batch_norm="device"',
    "equal_features (--equal-features)": "equal_features=True",
}
"""
Other options of commands, with the argument of `parallelize` that stands for each.
"""


def in_words_of_python(message: str) -> str:
    """
    Returns `message` with the options of commands replaced by arguments of
    `parallelize`.
    """
    for option, argument in _OPTIONS.items():
        message = message.replace(option, argument)
    return _DEGREE.sub(r"\1=", message)


@contextlib.contextmanager
def in_python() -> Generator[None]:
    """
    Returns a context manager that rewrites the messages of DistIRErrors: options of
    commands become arguments of `parallelize`.
    """
    try:
        yield
    except DistIRError as error:
        # The cause stays; a chain of two errors that say the same would not help.
        raise DistIRError(in_words_of_python(str(error))) from error.__cause__


CLUSTER = "cpu"
"""The default cluster for the distribution of modules."""

BATCH_NORMS = ("batch", "device")
"""
The sets of samples from which batch normalisation may take its statistics: the whole
batch (default), or the samples of each device.
"""

CHECKS = ("import", "off", "step")
"""The ways to compare the program with the module; the default first."""


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
    weights: str | Path | None = None,
    seed: int = 0,
    check: str = CHECKS[0],
    allow: Sequence[str] = (),
    compiled: bool = False,
    shapes: Sequence[Sequence[Any]] = (),
    max_programs: int = 8,
    pad_to: Lengths | Mapping[str, Lengths] | None = None,
    pad_with: Mapping[str, float] | None = None,
    detect_nan: bool = False,
    shared_with: Sequence[ParallelModule] = (),
    **distribution: Unpack[ParallelizeOptions],
) -> ParallelModule:
    """
    Returns a `ParallelModule`: the module distributed over all processes that call this
    function under `torchrun`, or on a single process.

    - `args`, `kwargs`: example inputs of the global batch. All values in them that are
      not tensors become fixed. For a batch with another number of samples, or another
      length, a call compiles another program over the same parameters, once for each
      shape. If the samples of a batch cannot be divided evenly among the ranks, each
      sample is taken several times, which does not change the mean.
    - `loss`: `cross_entropy` (logits `[..., V]`, integer labels `[...]`; the label -100
      is ignored), `mse`, a function of the module's output and the labels, or None if
      the module's output is the loss. With `outside`, or None and a module that returns
      no scalar, the script computes any loss from the module's outputs, as with
      `DistributedDataParallel`: each rank takes the mean loss of its part of the batch,
      and gradients are averaged over the parts.
    - `labels`: an example of the labels of the global batch: a tensor, or several in a
      tuple, list or dictionary. Give it if `loss` is a function and does not determine
      their shapes.
    - `cluster`: a built-in cluster or a cluster file, for decisions that depend on
      speed.
    - `schedule`: the name of the pipeline's schedule, or a schedule script
      (`docs/schedules.md`): a function or a file.
    - `fused_attention`: whether attention that a module writes as several ops becomes
      one op.
    - `equal_features`: asserts that each sample has as many places for features of
      images or sounds as there are features for it (`masked_scatter`). Models with such
      features need this for micro-batches. The results of a sample with another number
      of places become NaN.
    - `dtype`: `bf16`, `f16` or `f32`: the type of the model's computations, except its
      loss. Parameters keep their type, because the optimizer updates them, and are cast
      once in a step. Gradients have the type of their parameters. In f16 the loss is
      scaled; if gradients overflow, the step is computed again with a smaller scale.
    - `float8`: `tensor`, `row`, `row-gw-hp`, `mxfp8` or `nvfp4`, the recipe of 8-bit
      or 4-bit floats, as in `distir import`. Products of activations with parameters,
      except in the head, are then computed in such floats.
    - `kernels`: files MODULE.py with kernels that a schedule names. DistIR's own
      kernels need no file.
    - `batch_norm`: the samples from which batch normalisation takes its statistics in
      training. `batch`: the whole batch, as on one process (PyTorch's SyncBatchNorm).
      `device`: each device's own samples in each micro-batch (as in
      DistributedDataParallel).
    - `plan`: the result of `distir.search` for this module, loss and batch, or its
      file. It replaces `cluster`, the degrees and all other options of distribution.
    - `weights`: the first values of parameters and buffers, instead of the module's: a
      safetensors file, a folder of such files from `save_pretrained` of transformers, a
      file of `torch.save`, or a checkpoint of torch.distributed.checkpoint. Each rank
      reads only its own parts of safetensors files and checkpoints. The module can be
      on the meta device.
    - `seed`: the seed for parameters that have no values, because they are on the meta
      device or fake, and that `weights` lacks.
    - `check`: `import` compares the program with the module, on the example inputs and
      on other inputs, before compilation (see `import_torch`). `step` also compares the
      loss and the gradients of the first step with the module's on one process. `off`
      compares nothing.
    - `allow`: the differences from the module that are accepted: `control-flow`,
      `python-random`, `custom-backward`, `mismatch` (`trust.ACCEPTED`).
    - `compiled`: whether `torch.compile` compiles the program's functions, which takes
      about a minute at the first step.
    - `shapes`: further global batches, whose programs are compiled at once. Each is a
      list of the positional arguments of the module, followed by the labels if there is
      a loss. Their values do not matter.
    - `max_programs`: the largest number of shapes of batches. A call with another shape
      is an error.
    - `pad_to`: a call pads sequences to a multiple of this number (64), or to the
      smallest of these lengths ([32, 48, 64]) that has room for the longest sequence of
      all ranks. Sequences are dimension 1 of all inputs and labels of integers and
      flags; a dictionary names other inputs, each with its lengths. Outputs are
      returned without the appended elements. At the first padded call, rank 0 runs the
      module with and without padding: a loss or an output that padding changes is an
      error. `pad_with`: the numbers to append, by the name of an input, or under
      `labels`; by default 0, and -100 for integer labels.
    - `detect_nan`: a step whose loss or gradients have NaN runs again, op by op. The
      error then names the module in which NaN appears first. Each step waits for its
      results.
    - `shared_with`: parallel modules whose source modules share parameters or buffers
      with `module`. The new parallel module uses their tensors, so that all of them
      train one set of parameters. All need the same options.
    - `distribution`: options of `distir distribute`. `r`, `d`, `e`, `c`, `t`, `p` are
      degrees of parallelism; their product is the number of processes. `k` is the
      number of micro-batches. Further options: `zero`, `no_sync`, `checkpoint`,
      `sequence_parallel`, `overlap`, ... With `r` groups of processes, such as nodes
      (hybrid sharding), each group holds all parameters, gradients and states; ZeRO
      splits them over the `d` processes of a group. With `sharded_outputs`, outputs
      from which the script computes the loss are DTensors if t splits them, such as
      logits split over words (see `ParallelModule.cross_entropy`).

    Raises DistIRError, on every rank, if the module cannot be imported or distributed.
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
    if "schedule.opaque" in forward.script:
        from distir.scheduling.opaque import mark_scheduled

        mark_scheduled(module, forward.script)
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
    if options.sharded_outputs and loss not in (None, OUTSIDE):
        raise DistIRError(
            "parallelize: sharded_outputs=True leaves outputs split for a loss that the "
            "script computes, and the program computes this one; leave out one or the other"
        )
    if weights is not None and check == "step":
        raise DistIRError(
            'parallelize: check="step" compares with the module and its values, and '
            "weights= gives others; load them into the module, or leave one of them out"
        )
    stored = {} if weights is None else open_weights(weights, module)
    inputs = Inputs(module, args, kwargs)
    kept = inputs.kept
    padding = Padding.of(pad_to, pad_with)
    device = _device()
    if compiled:
        try:
            check_compiler("nccl" if device.type == "cuda" else "gloo")
        except ProgramError as error:
            raise DistIRError(f"parallelize, compiled=True: {error}") from error
    asked = AskedTypes(device.type, forward.dtype)

    live = live_modules(module, check=trust.check)

    # These functions keep no reference to the module, so that its values can be freed.
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
                lambda: content_key(
                    kind, kept.module, *call, (wanted, what, given.samples)
                ),
                make,
            )
        return RankProgram(Package(folder), device, live, options.sharded_outputs)

    base = Example(tuple(args), kwargs, request.labels)
    if shared_with and plan is not None:
        raise DistIRError(
            "parallelize: a plan says where all parameters are, and shared_with too; give "
            "the options of distribution instead of plan="
        )
    shared = SharedTensors(module, shared_with)
    if shared_with:
        request = replace(request, chosen=shared.chosen)
    chosen: list[Chosen] = []  # by the first program; others follow

    def asked_for(autocast: str | None, example: Example | None) -> Request:
        wanted = request.autocast_to(autocast)
        if chosen:
            wanted = replace(wanted, chosen=chosen[0])
        if example is None or not callable(loss):
            return wanted
        return replace(wanted, labels=example_labels(loss, example.labels))

    def step(
        trained: frozenset[str],
        inputs: frozenset[str] | None,
        autocast: str | None,
        example: Example | None = None,
    ) -> RankProgram:
        own = None if inputs is None else tuple(sorted(inputs))
        wanted, given = asked_for(autocast, example), example or base

        def make() -> dict[str, bytes]:
            with kept.with_values() as source:
                check_copies(source, loss, given)
                return training_package(source, given.args, given.kwargs, wanted, own)

        names = needed if own is None else own
        with training(kept.module, trained):
            made = program("training", names, wanted, given, make)
        if not chosen:
            shared.check(made)
            chosen.append(chosen_by(made))
        return made

    def evaluation(
        autocast: str | None, has_loss: bool, example: Example | None
    ) -> RankProgram:
        given = example or base
        wanted = asked_for(autocast, example if has_loss else None)
        package = validation_package if has_loss else evaluation_package

        def make() -> dict[str, bytes]:
            with kept.with_values() as source:
                check_copies(source, loss, given)
                return package(source, given.args, given.kwargs, wanted)

        return program(
            "validation" if has_loss else "evaluation", None, wanted, given, make
        )

    def generation(sizes: ServingSizes) -> Generation:
        wanted = replace(request, chosen=chosen[0])

        def make() -> dict[str, bytes]:
            with kept.with_values() as source:
                return generation_package(source, sizes, wanted)

        def key() -> str | None:
            return content_key("generation", kept.module, (), {}, (wanted, sizes))

        with in_python():
            folder = shared_package(key, make)
        return Generation.of(folder, device, sizes)

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
        generation,
        asked,
        seed,
        stored,
        SharedShapes(request.micro_batches, max_programs, padding),
        detect_nan,
        request.statistics.micro_batches,
        StepCheck(inputs, loss) if check == "step" else None,
        PaddingCheck(loss, inputs) if trust.check else None,
    )
    shared.put_into(parallel)
    for other in shapes:
        parallel.prepare(*other)
    if not live:  # opaque parts run as they are
        kept.release()
    return parallel


def _planned(
    loss: Loss,
    cluster: str,
    options: DistributionOptions,
    forward: ForwardOptions,
    plan: SavedPlan | str | Path,
) -> Request:
    """
    Returns the request for a plan. Raises DistIRError if `cluster` or `options` of
    distribution are also given.
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
    from distir.planning.plans.saved_plan import SavedPlan

    found = plan if isinstance(plan, SavedPlan) else SavedPlan.load(plan)
    return Request(loss, found.cluster, found, forward)


def _degrees(distribution: DistributionOptions | SavedPlan) -> str:
    """
    Returns, as text for messages, the plan, or the degrees whose product is the number
    of processes.
    """
    if not isinstance(distribution, DistributionOptions):
        return f"the plan ({distribution.result.plan})"
    axes = [
        axis
        for axis in ("r", "d", "e", "c", "t", "p")
        if axis not in ("r", "e", "c") or getattr(distribution, axis) > 1
    ]
    sizes = (str(getattr(distribution, axis)) for axis in axes)
    return f"{' x '.join(axes)} = {' x '.join(sizes)}"


def _join() -> None:
    """
    Starts communication with the other processes, unless the script has already started
    it.
    """
    if dist.is_initialized():
        return
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if dist.is_torchelastic_launched():
        join_ranks(backend, None)
    else:
        address = "tcp://127.0.0.1:0"
        dist.init_process_group(backend, init_method=address, rank=0, world_size=1)


def _device() -> torch.device:
    """
    Returns the device on which this process computes: a GPU if the processes
    communicate by NCCL, alone or beside a backend for CPUs, else the CPU. The GPU is
    the script's choice, or, if CUDA is not in use yet, the GPU with this process's
    number on its node. Raises DistIRError if there is no such GPU.
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
