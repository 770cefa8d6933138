"""
Describes a distributed program in the terms of eager PyTorch, with remarks on the parts
that PyTorch cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from distir.dialects.dist import Layout, layout_of
from distir.dialects.dist_attributes import FLATTENED, PADDED, REPACKED
from distir.dialects.train_ops.offload import OffloadOp
from distir.errors import DistIRError
from distir.exports.pipelines import PipelineStages, pipeline_stages
from distir.exports.tensor_parallel import (
    ParallelStyle,
    TensorParallelism,
    tensor_parallelism,
)
from distir.exports.walk import ProgramRun, RunStep, block_of
from distir.exports.weights import WeightKind, weight_use
from distir.program import (
    BATCH_ROLES,
    argument_roles,
    arguments_of,
    entry_function,
    is_training_step,
    parameters_of_states,
)
from distir.sharding.mesh import Mesh, meshes

_OF_BATCH = ("input", "label")


@dataclass(frozen=True)
class EagerPlan:
    """
    A distributed program in the terms of eager PyTorch.

    - `stages`: the stages of the pipeline, or None without a pipeline;
    - `data`: the name and size of the mesh axis that splits the batch, or None;
    - `tensor`: the name and size of the mesh axis that splits parameters, or None;
    - `trains`: whether the program is a training step;
    - `sharding`: the ZeRO stage: 3, or 2 for both ZeRO 1 and ZeRO 2. The stage is 0 if
      every data-parallel device holds all optimizer states;
    - `blocks`: the paths of the layers with parameters, the units of sharding and of
      recomputation;
    - `recomputed`: the paths of the layers that the backward pass computes again;
    - `parallelism`: the split of each module over the tensor-parallel axis;
    - `tied`: pairs of modules that share one matrix;
    - `micro_batches`: the number of parts of the batch that are computed one after
      another;
    - `remarks`: sentences about the parts of the program that PyTorch cannot express.
    """

    trains: bool
    data: tuple[str, int] | None
    tensor: tuple[str, int] | None
    stages: PipelineStages | None
    sharding: int
    blocks: tuple[str, ...]
    recomputed: tuple[str, ...]
    parallelism: TensorParallelism
    tied: tuple[tuple[str, str], ...]
    micro_batches: int
    remarks: tuple[str, ...] = field(default=())


def eager_plan(module: ModuleOp, what: str) -> EagerPlan:
    """
    Returns a distributed program's plan in the terms of eager PyTorch. `what` is the
    name of the program in error messages. Raises DistIRError if the program is not
    distributed, or if results would differ because PyTorch cannot express a part of the
    program.
    """
    entry, known = entry_function(module), meshes(module)
    if not known or all(layout_of(a) is None for a in entry.body.block.args):
        raise DistIRError(
            f"{what} is not distributed, so that there is no plan to write; run "
            f"`distir distribute` first"
        )
    mesh = next(iter(known.values()))
    if any(other.axes != mesh.axes for other in known.values()):
        raise DistIRError(
            f"{what} has stages on meshes of different shapes, which the schedules of PyTorch's "
            f"pipelining do not connect; choose a plan without stage_meshes"
        )
    _check_names(entry)
    layouts = list(map(layout_of, entry.body.block.args))
    data, tensor = _axes(mesh, entry, layouts)
    run = ProgramRun.of(module)
    owners = {
        argument.index: argument.name.rpartition(".")[0]
        for argument in arguments_of(entry)
        if argument.role == "parameter"
    }
    parallelism = TensorParallelism()
    if tensor is not None:
        parallelism = tensor_parallelism(run, tensor[0], owners)
    trains = is_training_step(entry)
    tied = _tied(run, owners)
    parallelism = _with_ties(parallelism, tied)
    stages = None
    if len(known) > 1:
        stages = pipeline_stages(run, owners, list(known.values()), tied)
    blocks = _blocks(run, owners)
    recomputed = tuple(b for b in blocks if _is_recomputed(run, b)) if trains else ()
    sharding = _sharding(entry, layouts, data) if trains else 0
    plan = EagerPlan(
        trains,
        data,
        tensor,
        stages,
        sharding,
        blocks,
        recomputed,
        parallelism,
        tied,
        run.micro_batches,
    )
    return replace(plan, remarks=tuple(_remarks(plan, entry, run)))


def _axes(
    mesh: Mesh, entry: FuncOp, layouts: Sequence[Layout | None]
) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
    """
    Returns the axis that splits batches and the axis that splits parameters. Each axis
    is given as a pair of name and size, or as None if the mesh has no such axis. Raises
    DistIRError if an axis splits sequences, or if several axes split batches or
    parameters.
    """
    batch: dict[str, None] = {}
    for argument, layout in zip(arguments_of(entry), layouts, strict=True):
        if argument.role in BATCH_ROLES and layout is not None and layout.dims:
            batch.update((shard.axis, None) for shard in layout.dims[0])
            inner = [s.axis for own in layout.dims[1:] for s in own]
            if inner:
                raise DistIRError(
                    f"export --to dtensor: axis {inner[0]!r} splits sequences (context "
                    f"parallelism), which modules of PyTorch are not told by layouts of "
                    f"parameters; choose a plan with c=1"
                )
    sizes = {name: size for name, size in mesh.axes if size > 1}
    data = [name for name in sizes if name in batch]
    others = [name for name in sizes if name not in batch]
    if len(data) > 1 or len(others) > 1:
        raise DistIRError(
            f"export --to dtensor: the axes {', '.join(data if len(data) > 1 else others)} "
            f"split {'batches' if len(data) > 1 else 'parameters'} together, where "
            f"PyTorch's functions take one axis each; choose a plan with axes d and t alone"
        )
    return (
        (data[0], sizes[data[0]]) if data else None,
        (others[0], sizes[others[0]]) if others else None,
    )


def _blocks(run: ProgramRun, owners: dict[int, str]) -> tuple[str, ...]:
    """Returns the paths of the layers that have parameters, in forward order."""
    found: dict[str, None] = {}
    for step in run.steps:
        views = (value.view for value in step.operands)
        if step.forward and any(v is not None and v.index in owners for v in views):
            block = block_of(step.scope)
            if block is not None:
                found[block] = None
    return tuple(found)


def _is_recomputed(run: ProgramRun, block: str) -> bool:
    """
    Whether the backward pass repeats a product with a parameter that the layer `block`
    computes in its forward pass.
    """
    own = [s for s in run.steps if block_of(s.scope) == block]
    forward = {_product(s) for s in own if s.forward} - {None}
    return any(not s.forward and _product(s) in forward for s in own)


def _product(step: RunStep) -> object | None:
    """
    Returns a key that is equal for steps that compute the same product with a
    parameter. The result is None if `step` computes no such product.
    """
    use = weight_use(step, None, {})
    if use is None or use.kind is WeightKind.EMBEDDING:
        return None
    return step.op.name, use.module, use.view, step.results[0].type


def _sharding(
    entry: FuncOp, layouts: Sequence[Layout | None], data: tuple[str, int] | None
) -> int:
    """
    Returns the program's ZeRO stage: 3; 2 for both ZeRO 1 and ZeRO 2; 0 if every
    data-parallel device holds all optimizer states.
    """
    if data is None:
        return 0
    roles, states = argument_roles(entry), parameters_of_states(entry)

    def is_split(index: int) -> bool:
        layout = layouts[index]
        return layout is not None and data[0] in layout.split_axes

    if any(is_split(i) for i, role in enumerate(roles) if role == "parameter"):
        return 3
    return 2 if any(is_split(i) for i in states) else 0


def _tied(run: ProgramRun, owners: dict[int, str]) -> tuple[tuple[str, str], ...]:
    """
    Returns the pairs of modules that use one matrix; the owner of the matrix comes
    first.
    """
    found: dict[tuple[str, str], None] = {}
    for step in run.steps:
        use = weight_use(step, None, owners) if step.forward else None
        if use is not None and use.view.index in owners:
            owner = owners[use.view.index]
            if owner != use.module:
                found[owner, use.module] = None
    return tuple(found)


def _remarks(plan: EagerPlan, entry: FuncOp, run: ProgramRun) -> list[str]:
    """Returns one sentence for each part of the program that PyTorch cannot express."""
    found = _refusals(plan.parallelism.refused)
    if plan.parallelism.splits_sequences:
        found.append(
            "Sequence parallelism is left out: sums over the tensor-parallel devices are "
            "whole on each of them, and so are the activations between the layers. Models "
            "that read the length of a sequence off their inputs would take that of a part "
            "for the whole."
        )
    alone = [
        name
        for name, style in plan.parallelism.styles.items()
        if style.kind is WeightKind.LINEAR and style.columns and not style.joined
    ]
    if alone:
        found.append(
            f"What is computed by {', '.join(alone)} is gathered, where the plan may go on "
            f"with parts (in a loss over split classes, for instance)."
        )
    arguments = arguments_of(entry)
    padded = [a.name for a in arguments if PADDED in a.attributes]
    if padded:
        found.append(
            f"{padded[0]} is padded in the plan, so that it can be split; PyTorch splits "
            f"it unevenly instead."
        )
    if plan.sharding == 2:
        found.append(
            "ZeRO 1 and 2 are fully_shard without resharding after the forward: states and "
            "gradients are in parts, parameters are gathered in the forward and freed after "
            "the backward."
        )
    elif any(FLATTENED in a.attributes for a in arguments):
        found.append(
            "Parameters that no number of devices divides are flattened in the plan; "
            "fully_shard pads their first dimension."
        )
    if plan.trains and not plan.recomputed and _recomputes_scores(run):
        found.append(
            "The plan computes the scores of attention again (selective checkpointing). "
            "PyTorch's fused attention does so by itself; attention that is written out "
            "keeps them."
        )
    if plan.trains and plan.data is not None and _has_statistics(run):
        found.append(
            "Batch normalisation takes the statistics of each device's own samples, as in "
            "DistributedDataParallel, where the plan may take those of the whole batch; see "
            "torch.nn.SyncBatchNorm.convert_sync_batchnorm."
        )
    if plan.stages is not None and plan.stages.splits_backward:
        found.append(
            f"The backward of parameters is computed apart in the plan; "
            f"{plan.stages.schedule} is the nearest of PyTorch's schedules."
        )
    if any(isinstance(step.op, OffloadOp) for step in run.steps):
        found.append(
            "Offloading to the host's memory is left out; for activations see "
            "torch.autograd.graph.save_on_cpu."
        )
    return found


def _has_statistics(run: ProgramRun) -> bool:
    """
    Whether the forward pass normalises by statistics of the batch (batch
    normalisation).
    """
    names = ("train.batch_norm_variance", "train.batch_norm_sums")
    return any(step.forward and step.op.name in names for step in run.steps)


def _refusals(refused: Mapping[str, str]) -> list[str]:
    """
    Returns a sentence for each module that tensor parallelism leaves whole. `refused`
    maps the path of each such module to the reason. Layers with the same reason share a
    sentence.
    """
    alike: dict[tuple[str, str], None] = {}
    for name, why in refused.items():
        parts = ["*" if part.isdecimal() else part for part in name.split(".")]
        alike[".".join(parts), why] = None
    return [
        f"{name} stays whole on every device of a tensor-parallel group: {why}."
        for name, why in alike
    ]


def _with_ties(
    parallelism: TensorParallelism, tied: Sequence[tuple[str, str]]
) -> TensorParallelism:
    """
    Returns `parallelism` without the splits that would divide a shared parameter in two
    different ways. `tied` lists the pairs of modules that share a parameter.
    """
    styles, refused = dict(parallelism.styles), dict(parallelism.refused)
    for pair in tied:
        dims = {_split_dim(styles[name]) if name in styles else None for name in pair}
        if len(dims) > 1:
            for name in pair:
                if styles.pop(name, None) is not None:
                    refused[name] = f"it shares its weight with {pair[0]}"
    return replace(parallelism, styles=styles, refused=refused)


def _split_dim(style: ParallelStyle) -> int:
    """Returns the dimension of a module's weight that `style` splits."""
    return int(style.columns == (style.kind is WeightKind.EMBEDDING))


def _recomputes_scores(run: ProgramRun) -> bool:
    """
    Whether the backward pass of a layer repeats a softmax of the layer's forward pass.
    """
    return any(
        step.op.name == "onnx.Softmax" and not step.forward and block_of(step.scope)
        for step in run.steps
    )


def _check_names(entry: FuncOp) -> None:
    """
    Raises DistIRError if a schedule merged parameters of the source model into one.
    """
    for argument in arguments_of(entry):
        if REPACKED in argument.attributes:
            raise DistIRError(
                f"export --to dtensor: a schedule merged parameters into {argument.name!r}, which "
                f"the model does not have; choose a plan without that"
            )
