"""
Compiles a module to a package of generated Python code that runs the module on every
rank.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distir.errors import DistIRError
from distir.frontends.torch.trust import Trust
from distir.gradients.batch_parts import BatchParts
from distir.gradients.options import OUTSIDE
from distir.parallel.autocast import outside_autocast
from distir.parallel.calling import Inputs
from distir.parallel.content import content_key, tensors_of
from distir.parallel.forward_options import ForwardOptions
from distir.parallel.losses import Loss, labels_of, with_loss
from distir.parallel.packages import (
    cached_folder,
    files_of,
    keep_files,
    save_constants,
)
from distir.parallel.training.imported_loss import (
    arguments_with,
    given_labels,
    ignored_label,
    kind_of_loss,
    loss_result,
)
from distir.planning.distribution.entries import Chosen
from distir.planning.distribution.options import ZERO_AXES, DistributionOptions
from distir.system.output_files import write_text

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from distir.frontends.imported_model import ImportedModel
    from distir.planning.plans.saved_plan import SavedPlan

CONSTANTS = "constants.safetensors"
"""The file of a package with the constants that the exporter made."""

INTERFACE = "interface.json"
"""
The file of a package with the names of its inputs and labels, the pipeline stages of its
arguments, and its notes.
"""


PROGRAM = "program.mlir"
LABELS = "labels.json"
"""
The cached files of a sequential program: `PROGRAM` holds the program, and `LABELS` the
names of its labels.
"""


@dataclass(frozen=True)
class UserKernels:
    """A file with the user's kernels, and the SHA-256 of its content."""

    path: Path
    digest: str

    @staticmethod
    def of(path: str | Path) -> UserKernels:
        """
        Returns the description of the file at `path`. Raises DistIRError if the file
        cannot be read.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DistIRError(
                f"parallelize: cannot read the kernels in {path}: {error.strerror}"
            ) from error
        return UserKernels(Path(path), hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Request:
    """
    A request to compile a module.

    - `loss`: `cross_entropy`, `mse` or a function of the output and the labels; None if
      the module's output is the loss;
    - `cluster`: a cluster, as the text of its op;
    - `distribution`: the options of `distribute` on this cluster, or a plan that a
      search found for the cluster;
    - `forward`: the options that change the program before it is differentiated;
    - `own_statistics`: whether batch normalisation uses the statistics of each device's
      samples in a micro-batch, instead of the statistics of the whole batch;
    - `kernels`: the files of kernels that a schedule may name;
    - `trust`: whether the program is compared with the module, and the accepted
      differences;
    - `labels`: an example of the labels, for a loss that is a function; None if DistIR
      determines their shape from the loss;
    - `compiled`: whether `torch.compile` compiles each function of the program;
    - `chosen`: the layouts and pipeline stages of parameters in the first program of
      the module; None for the first program itself.
    """

    loss: Loss
    cluster: str
    distribution: DistributionOptions | SavedPlan
    forward: ForwardOptions = field(default_factory=ForwardOptions)
    own_statistics: bool = False
    kernels: tuple[UserKernels, ...] = ()
    trust: Trust = field(default_factory=Trust)
    labels: Any = None
    compiled: bool = False
    chosen: Chosen | None = None

    @property
    def devices(self) -> int:
        """The number of processes that run the package."""
        own = self.distribution
        return own.devices

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of each step."""
        own = self.distribution
        return own.result.plan.k if not isinstance(own, DistributionOptions) else own.k

    @property
    def statistics(self) -> BatchParts:
        """
        The parts of a batch for which batch normalisation computes separate statistics.
        """
        own = self.distribution
        if not self.own_statistics:
            return BatchParts()
        if not isinstance(own, DistributionOptions):
            return BatchParts(own.batch_parts, own.result.plan.k)
        return BatchParts(own.batch_parts, own.k)

    def autocast_to(self, dtype: str | None) -> Request:
        """
        Returns the same request with the program autocast to `dtype`. None means no
        autocast.
        """
        return replace(self, forward=replace(self.forward, autocast=dtype))

    def distribute_step(self, program: ModuleOp, *, is_first: bool = True) -> Chosen:
        """
        Distributes a step that computes gradients, in place. Returns the choices that
        the module's other programs must follow. Leaves out options that cannot affect
        this step, given the tensors whose gradients it computes. For the first step of
        a module (`is_first`), leaves out only ZeRO, so that the user gets an error if
        no layer can be recomputed. Raises DistIRError for options that do not fit the
        program.
        """
        own = self.distribution
        without = _inapplicable(program)
        if is_first:  # that no layer is recomputed is for the user to know
            without.pop("checkpoint", None)
        if not isinstance(own, DistributionOptions):
            return own.without(without).distribute_step(program, self._but_for_zero())
        return self._distribute(program, replace(own, **without), self._but_for_zero())

    def _but_for_zero(self) -> Chosen | None:
        """
        The choices of the first program that a step must follow, without the axes of
        ZeRO: each step splits parameters over these axes again.
        """
        own = self.distribution
        plan = own.result.plan if not isinstance(own, DistributionOptions) else own
        if self.chosen is None or not getattr(plan, "zero", 0):
            return self.chosen
        return replace(self.chosen, free=ZERO_AXES)

    def distribute_forward(self, program: ModuleOp) -> Chosen:
        """
        Distributes the program of evaluation mode, in place, with parameters in the
        layouts and on the stages of the first step. Raises DistIRError for options that
        do not fit the program.
        """
        own, chosen = self.distribution, self.chosen or Chosen({}, {})
        if not isinstance(own, DistributionOptions):
            own.distribute_forward(program, chosen)
            return chosen
        chunks = own.forward_chunks(own.k) if own.is_pipelined else own.chunks
        if chunks is None:
            chosen = replace(chosen, stages={})
        forward = replace(
            own,
            zero=0,
            no_sync=False,
            offload_states=False,
            checkpoint="none",
            schedule="",
            schedule_file="",
            chunks=chunks,
            stages=(),
        )
        return self._distribute(program, forward, chosen)

    def _distribute(
        self, program: ModuleOp, options: DistributionOptions, chosen: Chosen | None
    ) -> Chosen:
        # A start from the cache does without the planner.
        from distir.planning.distribution.distribute import distribute
        from distir.planning.plans.programs import cluster_of_text, replace_cluster

        cluster = cluster_of_text(self.cluster)
        replace_cluster(program, cluster)
        options = replace(options, cluster=cluster.sym_name.data)
        return distribute(program, options, chosen)


def training_package(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Request,
    inputs: Sequence[str] | None = (),
) -> dict[str, bytes]:
    """
    Returns the files, by name, of the package for training steps of a module. The
    package computes the loss, the gradients of all parameters that require gradients,
    and the gradients of the inputs and labels named in `inputs` (None: the example
    inputs that require gradients). Raises DistIRError if the module cannot be imported
    or its program cannot be distributed.
    """
    examples = tensors_of((tuple(args), dict(kwargs)))
    needed = [t.requires_grad for t in examples] if inputs is None else []
    imported, labels = _program(
        "training program",
        (
            *(module, args, kwargs),
            (
                *(request.loss, request.forward, request.statistics),
                *(request.labels, inputs, needed, request.trust),
            ),
        ),
        lambda: training_program(
            module,
            args,
            kwargs,
            request.loss,
            forward=request.forward,
            statistics=request.statistics,
            trust=request.trust,
            example=request.labels,
            inputs=inputs,
        ),
    )
    distribute = partial(request.distribute_step, is_first=inputs is None)
    return _package(imported, labels, distribute, request)


def training_program(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Loss,
    optimizer: str = "none",
    forward: ForwardOptions | None = None,
    statistics: BatchParts = BatchParts(),
    trust: Trust = Trust(),
    example: Any = None,
    inputs: Sequence[str] | None = (),
) -> tuple[ImportedModel, list[str]]:
    """
    Returns the sequential program of a module in training mode, and the names of its
    labels.

    The program computes the loss, and the optimizer's updates or, with the optimizer
    `none`, the gradients. Submodules in evaluation mode keep this mode, unless the
    module itself is in evaluation mode. A cross-entropy ignores the label -100, as
    PyTorch does.

    - `statistics`: the parts of a batch that are normalised separately;
    - `trust`: whether the program is compared with the module, and the accepted
      differences;
    - `example`: an example of the labels, for a loss that is a function;
    - `inputs`: the inputs and labels whose gradients the program also returns, which
      needs the optimizer `none`; None stands for the example inputs that require
      gradients.

    Raises DistIRError if the module cannot be imported.
    """
    from distir.passes.differentiate import DifferentiatePass
    from distir.tools.files import apply_passes

    forward = forward or ForwardOptions()
    imported, last = _with_labels(
        module, args, kwargs, loss, forward, trust, example, trains=True
    )
    given = arguments_with(imported.module, "input")
    name = kind_of_loss(loss, imported.module)
    if inputs is None:
        known = Inputs(module, args, kwargs)
        tensors = known.by_name(args, kwargs, [n for n in given if n not in last])
        inputs = [n for n, tensor in tensors.items() if tensor.requires_grad]
    forward.apply(imported.module, apart=last)
    # A script that computes the loss scales it itself.
    is_scaled = forward.needs_loss_scaling and name != OUTSIDE
    differentiate = DifferentiatePass(
        loss=name,
        output=loss_result(imported.module) if name == "none" else 0,
        ignore_index=ignored_label(name),
        inputs=tuple(inputs),
        optimizer=optimizer,
        loss_scaling="dynamic" if is_scaled else "none",
        batch_norm_devices=statistics.devices,
        batch_norm_micro_batches=statistics.micro_batches,
        fused_attention=forward.attention,
    )
    apply_passes(imported.module, differentiate)
    forward.complete(imported.module)
    return imported, last + given_labels(imported.module)


def _with_labels(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Loss,
    forward: ForwardOptions,
    trust: Trust,
    example: Any,
    *,
    trains: bool,
) -> tuple[ImportedModel, list[str]]:
    """
    Imports a module in training mode (`trains`) or evaluation mode. A loss that is a
    function becomes part of the program. Returns the program and the names of the
    labels of such a loss. Raises DistIRError if the module cannot be imported.
    """
    from distir.frontends.torch.importer import import_torch

    options: dict[str, Any] = {
        "training": trains,
        "equal_features": forward.equal_features,
        "copy": False,
        "check": trust.check,
        "allow": tuple(trust.allow),
    }
    count = 0
    modes = {part: part.training for part in module.modules()}
    if trains and not module.training:
        module.train()
    try:
        with outside_autocast():
            if callable(loss):
                labels = example
                if labels is None:
                    labels = labels_of(module, args, kwargs, loss)
                count = len(tensors_of(labels))
                with with_loss(module, loss):
                    imported = import_torch(module, (*args, labels), kwargs, **options)
            else:
                imported = import_torch(module, args, kwargs, **options)
    finally:
        for part, mode in modes.items():
            part.training = mode
    _warn(imported)
    if not callable(loss):
        return imported, []
    # It takes the labels behind the positional arguments.
    before = len(tensors_of(tuple(args)))
    return imported, arguments_with(imported.module, "input")[before : before + count]


def loss_program(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Request,
) -> tuple[ImportedModel, list[str]]:
    """
    Returns the sequential program of a module in evaluation mode that computes its
    loss, and the names of its labels. Raises DistIRError if the module cannot be
    imported.
    """
    from distir.gradients.losses import leave_loss

    forward, loss = request.forward, request.loss
    imported, last = _with_labels(
        *(module, args, kwargs, loss, forward, request.trust, request.labels),
        trains=False,
    )
    forward.apply(imported.module, apart=last)
    if isinstance(loss, str):
        leave_loss(imported.module, loss, 0, ignored_label(loss))
    else:
        leave_loss(imported.module, "none", loss_result(imported.module))
    forward.complete(imported.module)
    return imported, last + given_labels(imported.module)


def forward_program(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    forward: ForwardOptions | None = None,
    trust: Trust = Trust(),
) -> ImportedModel:
    """
    Returns the sequential program of a module in evaluation mode. Raises DistIRError if
    the module cannot be imported.
    """
    from distir.frontends.torch.importer import import_torch

    forward = forward or ForwardOptions()
    with outside_autocast():
        imported = import_torch(
            module,
            args,
            kwargs,
            equal_features=forward.equal_features,
            copy=False,
            check=trust.check,
            allow=tuple(trust.allow),
        )
    _warn(imported)
    forward.apply(imported.module)
    forward.complete(imported.module)
    return imported


def _warn(imported: ImportedModel) -> None:
    """
    Issues a Python warning for each note of the frontend, because a training script
    would not see the notes otherwise.
    """
    for note in imported.notes:
        warnings.warn(note, stacklevel=2)


def evaluation_package(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Request,
) -> dict[str, bytes]:
    """
    Returns the files, by name, of the package that computes the outputs of a module in
    evaluation mode. Raises DistIRError if the module cannot be imported or its program
    cannot be distributed.
    """
    imported, labels = _program(
        "forward program",
        (module, args, kwargs, (request.forward, request.trust)),
        lambda: (
            forward_program(module, args, kwargs, request.forward, request.trust),
            [],
        ),
    )
    return _package(imported, labels, request.distribute_forward, request)


def validation_package(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Request,
) -> dict[str, bytes]:
    """
    Returns the files, by name, of the package that computes the loss of a module in
    evaluation mode. Raises DistIRError if the module cannot be imported or its program
    cannot be distributed.
    """
    imported, labels = _program(
        "validation program",
        (
            *(module, args, kwargs),
            (request.loss, request.forward, request.labels, request.trust),
        ),
        lambda: loss_program(module, args, kwargs, request),
    )
    return _package(imported, labels, request.distribute_forward, request)


def _program(
    kind: str,
    content: tuple[torch.nn.Module, Sequence[Any], Mapping[str, Any], Any],
    make: Callable[[], tuple[ImportedModel, list[str]]],
) -> tuple[ImportedModel, list[str]]:
    """
    Returns a sequential program and the names of its labels, from the cache or by
    calling `make`. The cache key depends on `kind` and `content`, but not on a plan, so
    that a module is not exported again for another plan. A cached program has only its
    constants as weights. Raises DistIRError if `make` does.
    """
    from distir.frontends.imported_model import ImportedModel
    from distir.program.weights import load_weights
    from distir.tools.files import read_program, write_program

    key = content_key(kind, *content)
    if (folder := cached_folder(key)) is not None:
        constants = load_weights(folder / CONSTANTS)
        labels = json.loads((folder / LABELS).read_text())
        return ImportedModel(read_program(folder / PROGRAM), constants), labels
    imported, labels = make()
    if key is not None:
        with tempfile.TemporaryDirectory() as made:
            write_program(imported.module, Path(made, PROGRAM), locations=True)
            save_constants(imported, Path(made, CONSTANTS))
            write_text(Path(made, LABELS), json.dumps(labels))
            keep_files(key, {p.name: p.read_bytes() for p in Path(made).iterdir()})
    return imported, labels


def write_with_constants(
    imported: ImportedModel, folder: str, request: Request, *, opaque: bool
) -> Path:
    """
    Writes the package of a program to `folder`, with its constants, and returns its
    path. `opaque` tells whether the module may have opaque parts.
    """
    from distir.lowering.torch_package import write_package

    package = write_package(
        imported.module,
        folder,
        helpers=("batches", "initial"),
        kernels=[file.path for file in request.kernels],
        compiled=request.compiled,
        opaque=opaque,
    )
    save_constants(imported, package / CONSTANTS)
    return package


def _inapplicable(program: ModuleOp) -> dict[str, Any]:
    """
    Returns the options of `distribute` without effect in this training step, with the
    values that switch them off: ZeRO if the step has no updates and no gradients of
    parameters, and recomputation if no layer has a backward pass.
    """
    from distir.gradients.call_pairs import call_pairs
    from distir.program import (
        argument_roles,
        entry_function,
        functions,
        linked_arguments,
    )

    function = entry_function(program)
    roles = argument_roles(function)
    found: dict[str, Any] = {}
    if not any(roles[i] == "parameter" for i in linked_arguments(function).values()):
        found |= {"zero": 0, "no_sync": False}
    if not call_pairs(function, functions(program)):
        found["checkpoint"] = "none"
    return found


def _package(
    imported: ImportedModel,
    labels: Sequence[str],
    apply: Callable[[ModuleOp], Chosen],
    request: Request,
) -> dict[str, bytes]:
    """
    Returns the files of a program's package, by their paths in it. `apply` distributes
    the program in place, and returns the choices for other programs. `labels` are the
    names of the inputs that are labels.
    """
    from distir.planning.annotations import read_notes

    program = imported.module
    inputs = [name for name in arguments_with(program, "input") if name not in labels]
    chosen = apply(program)
    with tempfile.TemporaryDirectory() as made:
        folder = write_with_constants(imported, made, request, opaque=True)
        write_interface(folder, inputs, labels, chosen, read_notes(program))
        return files_of(Path(folder))


def write_interface(
    folder: Path,
    inputs: Sequence[str],
    labels: Sequence[str],
    chosen: Chosen,
    notes: Sequence[str],
) -> None:
    """Writes the file `INTERFACE` of the package in `folder`."""
    interface = {
        "inputs": list(inputs),
        "labels": list(labels),
        "stages": dict(chosen.stages),
        "notes": list(notes),
    }
    write_text(folder / INTERFACE, json.dumps(interface, indent=2))
