"""
Distributes a sequential program by a user's options: the steps behind the pass
`distribute`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, MeshOp
from distir.errors import DistIRError, one_of
from distir.pipelining import SEARCH
from distir.planning.annotations import add_notes
from distir.planning.axes.sharding_plan import propagate_sharding
from distir.planning.axes.tensor_parallel import split_parameters
from distir.planning.distribution.batches import split_batch
from distir.planning.distribution.buckets import bucket_collectives_of
from distir.planning.distribution.caches import (
    axes_of_heads,
    split_parameters_like,
    split_positions,
)
from distir.planning.distribution.context import split_context
from distir.planning.distribution.entries import (
    Chosen,
    ask_for_stages,
    check_meshes,
    fix_layouts,
    for_entry,
    stored_layouts,
)
from distir.planning.distribution.experts import split_experts
from distir.planning.distribution.meshes import (
    add_mesh,
    check_sequential,
    check_size,
    cluster_in,
    declare_mesh,
)
from distir.planning.distribution.options import (
    AXES,
    CACHE_SPLITS,
    EXPERT_AXES,
    HEAD_AXIS,
    NAME,
    POSITION_AXES,
    ZERO_AXES,
    DistributionOptions,
)
from distir.planning.distribution.outputs import leave_outputs_split, split_outputs
from distir.planning.distribution.overlap import (
    Combination,
    Overlapped,
    overlap_communication,
)
from distir.planning.distribution.own_axes import request_own_axes
from distir.planning.distribution.padding import PADDABLE, pad_dimensions, pad_heads
from distir.planning.distribution.zero import store_split
from distir.planning.expectations import check_expectations
from distir.planning.requests import keep_whole, named_argument, request_shards
from distir.planning.stages import make_pipeline_as_asked
from distir.program import (
    entry_function,
    entry_points,
    is_training_step,
    parameters_of_gradients,
    replace_program,
)
from distir.program.entries import joined, one_entry
from distir.program.locations import KnownLocations
from distir.sharding.mesh import TIME_AXIS, only_mesh
from distir.sharding.verification import verify_distribution
from distir.transforms.memory.checkpoint_policies import LayerPolicies
from distir.transforms.memory.checkpointing import checkpoint
from distir.transforms.memory.state_offloading import offload_states
from distir.transforms.overlap.kinds import KINDS
from distir.transforms.overlap.shared_gathers import gather_once
from distir.transforms.partitioning import partition
from distir.transforms.resharding import lower_reshards
from distir.transforms.sequences.ring_attention import ring_attention
from distir.transforms.sequences.sequence_parallel import split_sequences

CONTEXTS = ("gather", "ring")
"""The ways in which keys and values reach all queries of a split sequence."""


def _speaks_of(options: DistributionOptions, name: str) -> bool:
    """
    Returns whether the options `shard` or `whole` request a layout for the argument
    `name`.
    """
    patterns = (*options.whole, *map(named_argument, options.shard))
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_options(options: DistributionOptions, module: ModuleOp) -> None:
    """
    Raises DistIRError for options that contradict each other or do not suit the
    program.
    """
    one_of("way to bring keys to queries", options.context, CONTEXTS, NAME)
    check_experts(options)
    plain = options.context == "gather" and options.context_order == "contiguous"
    if options.c == 1 and not plain:
        raise DistIRError(
            f"distribute: context={options.context} and context_order={options.context_order} "
            f"say how sequences are split over the context-parallel devices, but c is 1; "
            f"choose a larger -c"
        )
    if options.sequence_parallel and options.t == 1:
        raise DistIRError(
            "distribute: sequence parallelism splits sequences over the "
            "tensor-parallel devices, but t is 1; choose a larger -t"
        )
    if options.keep_gathered and not options.sequence_parallel:
        raise DistIRError(
            "distribute: keep_gathered keeps activations that sequence parallelism gathers; "
            "add sequence_parallel, or leave it out"
        )
    for what in options.pad:
        one_of("thing to pad", what, PADDABLE, f"{NAME}: pad")
    if options.pad and options.t == 1:
        raise DistIRError(
            "distribute: pad lets tensor-parallel devices share what their number does not "
            "divide, but t is 1; choose a larger -t"
        )
    options.check_pipeline(NAME)
    check_cache_split(options, module)
    if options.overlap and options.blocking_sends:
        raise DistIRError(
            "distribute: sends that block cannot overlap with computation; leave out "
            "either overlap or blocking_sends"
        )
    for kind in options.overlapped:
        one_of("kind of communication", kind, KINDS, f"{NAME}: overlap")
    if options.overlapped and not options.overlap:
        raise DistIRError(
            "distribute: overlapped says which communication overlaps computation, but "
            "overlap is off; add overlap=true, or leave it out"
        )
    if options.zero and options.d * options.e == 1:
        raise DistIRError(
            f"distribute: ZeRO stage {options.zero} splits what a training step keeps "
            f"over the data-parallel devices, but d is 1; choose a larger -d"
        )
    if options.no_sync and (options.zero < 2 or options.k == 1):
        raise DistIRError(
            f"distribute: no_sync adds up whole gradients over micro-batches, which ZeRO 2 "
            f"and 3 scatter for each of them, but the ZeRO stage is {options.zero} and k is "
            f"{options.k}; leave it out, or choose such a stage and a larger -k"
        )
    LayerPolicies.of(options.checkpoint, NAME)
    asked = [f"ZeRO stage {options.zero}"] if options.zero else []
    if options.checkpoint != "none":
        asked.append(f"{options.checkpoint} activation checkpointing")
    if options.offload_states:
        asked.append("offloading of the optimizer's states")
    if asked and not is_training_step(entry_function(module)):
        raise DistIRError(
            f"distribute: {' and '.join(asked)} needs a training step, but the "
            f"program updates no argument (dist.updates); build or import it with "
            f"--training, or run `differentiate` first"
        )


def check_cache_split(options: DistributionOptions, module: ModuleOp) -> None:
    """
    Raises DistIRError for options that contradict the option `cache_split`, with which
    the devices of `t` can become two axes of the mesh, and for a training step.
    """
    one_of("split of caches", options.cache_split, CACHE_SPLITS, NAME)
    if options.cache_split == "heads":
        return
    if options.t == 1:
        raise DistIRError(
            f"{NAME}: cache_split=positions says how the tensor-parallel devices share "
            f"caches, but t is 1; choose a larger -t, or split positions with -c"
        )
    if is_training_step(entry_function(module)):
        raise DistIRError(
            f"{NAME}: cache_split=positions is for programs of inference, but the program "
            f"is a training step; leave it out"
        )
    others = {
        "sequence_parallel": options.sequence_parallel,
        "sharded_outputs": options.sharded_outputs,
        "pad=heads": options.pad,
        "stage_meshes": options.stage_meshes,
        f"expert_axes={options.expert_axes}": "t" in options.expert_axes,
    }
    for name, is_given in others.items():
        if is_given:
            raise DistIRError(
                f"{NAME}: cache_split=positions makes two axes of the devices of t, which "
                f"{name} needs as one; leave out one of the two"
            )


def check_experts(options: DistributionOptions) -> None:
    """
    Raises DistIRError for options of expert parallelism that contradict each other.
    """
    one_of("set of axes of experts", options.expert_axes, EXPERT_AXES, NAME)
    axes = options.axes_of_experts
    if not axes and options.token_dispatch != "auto":
        raise DistIRError(
            f"distribute: token_dispatch={options.token_dispatch} says how tokens come to the "
            f"experts of other devices, but e is 1; choose a larger -e"
        )
    if options.expert_axes == "e":
        return
    idle = [axis for axis in options.expert_axes[1:] if axis not in axes]
    if idle:
        raise DistIRError(
            f"distribute: expert_axes={options.expert_axes} deals experts out over axis "
            f"{idle[0]!r}, but {idle[0]} is 1; choose a larger -{idle[0]}, or leave it out"
        )
    if options.c > 1 and "c" not in axes:
        raise DistIRError(
            f"distribute: expert_axes={options.expert_axes} leaves out axis 'c', whose devices "
            f"have other tokens, between two of its axes; choose expert_axes=ect"
        )
    if "ct" in options.expert_axes and options.context_order == "cyclic":
        raise DistIRError(
            "distribute: expert_axes=ect sends the tokens of neighbours in one all-to-all, but "
            "context_order=cyclic deals them out in turn; choose context_order=contiguous"
        )


def may_gather_first(options: DistributionOptions) -> bool:
    """
    Whether ZeRO's stages 1 and 2 may gather updated parameters at the start of the next
    step, instead of right after the update. The forward pass can then overlap the
    communication. Of several micro-batches, the first one gathers parameters for all.
    """
    early = options.overlap and "params" in (options.overlapped or KINDS)
    return early and options.zero in (1, 2)


def choose_layouts(
    module: ModuleOp,
    options: DistributionOptions,
    chosen: Chosen | None = None,
    *,
    gather_first: bool = True,
) -> None:
    """
    Adds a mesh to a sequential program, chooses layouts on the mesh, and writes them as
    annotations. This is the first part of `distribute`. Arguments in `chosen` keep the
    layouts and stages that were chosen for another program. With `gather_first`,
    parameters are gathered before the next forward pass where `may_gather_first` allows
    it. Raises DistIRError for options that contradict each other or do not suit the
    program.
    """
    request_layouts(module, options, chosen)
    solve_layouts(module, options, gather_first=gather_first)


def request_layouts(
    module: ModuleOp,
    options: DistributionOptions,
    chosen: Chosen | None = None,
) -> None:
    """
    Adds a mesh to a sequential program, and writes the layouts that the axes in
    `options` request. This is the part of `choose_layouts` that is the same for all
    ZeRO stages. Raises DistIRError for options that contradict each other or do not
    suit the program.
    """
    check_sequential(module, NAME)
    check_options(options, module)
    _add_mesh(module, options)
    mesh, shard = only_mesh(module), options.shard
    if mesh.sizes.get("t", 1) > 1:
        pad_dimensions(module, mesh, "t", options.shard)
        heads = pad_heads(module, mesh, "t", "heads" in options.pad)
        shard += tuple(r for r in heads if not _speaks_of(options, named_argument(r)))
    request_shards(module, mesh, shard, (*AXES, HEAD_AXIS))
    keep_whole(module, mesh, options.whole)
    request_own_axes(module, mesh)
    if chosen is not None:
        fix_layouts(module, mesh, chosen)
        if options.p > 1:
            ask_for_stages(module, chosen.stages)
    checkpoint(module, options.checkpoint)
    if options.is_pipelined:
        split_batch(module, TIME_AXIS)
    for axis, size in (("r", options.r), ("d", options.d)):
        if size > 1:
            split_batch(module, axis)
    if options.e > 1:
        split_batch(module, "e")
    if options.axes_of_experts and "c" not in options.axes_of_experts:
        split_experts(module, options.axes_of_experts, options.token_dispatch)
    batch = ("r", "d", "e")
    axes = [axis for axis in batch if getattr(options, axis) > 1]
    split_outputs(module, mesh, [TIME_AXIS, *axes] if options.is_pipelined else axes)
    if axes := [axis for axis in POSITION_AXES if mesh.sizes.get(axis, 1) > 1]:
        split_positions(module, axes)
    if options.c > 1:
        split_context(module, "c", options.context_order)
    if "c" in options.axes_of_experts:
        split_experts(module, options.axes_of_experts, options.token_dispatch)
    if options.sequence_parallel:
        residuals = "whole" if options.keep_gathered else "parts"
        split_sequences(module, mesh, "t", residuals)
    if HEAD_AXIS in mesh.sizes:
        if mesh.sizes.get("t", 1) > 1:
            split_parameters(module, "t")
            split_parameters_like(module, mesh, "t", HEAD_AXIS)
        else:
            split_parameters(module, HEAD_AXIS)
    elif options.t > 1:
        split_parameters(module, "t", leaves_split=options.sharded_outputs)
        if options.sharded_outputs:
            leave_outputs_split(module, mesh, "t")


def solve_layouts(
    module: ModuleOp, options: DistributionOptions, *, gather_first: bool = True
) -> None:
    """
    Splits the tensors that the ZeRO stage splits, and solves for the layouts of all
    values. The program must have the requests of `request_layouts`. With
    `gather_first`, parameters are gathered before the next forward pass where
    `may_gather_first` allows it.
    """
    mesh = only_mesh(module)
    if options.zero:
        store_split(
            module,
            options.zero,
            [axis for axis in ZERO_AXES if mesh.sizes.get(axis, 1) > 1],
            gather_first=gather_first and may_gather_first(options),
            no_sync=options.no_sync,
        )
    propagate_sharding(module, mesh)


def distribute(
    module: ModuleOp, options: DistributionOptions, chosen: Chosen | None = None
) -> Chosen:
    """
    Distributes a sequential program in place, verifies the result, and returns the
    choices that other programs with the same arguments can follow. Arguments in
    `chosen` keep the layouts and stages that were chosen for another program. If a
    program has several entries, all entries are distributed, and an argument that
    several entries share gets one layout. Raises DistIRError for options that
    contradict each other or do not suit the program.
    """
    names = list(entry_points(module))
    if not names:
        return _distribute(module, options, chosen)
    check_meshes(options)
    made: dict[str, ModuleOp] = {}
    for name in reversed(names):
        made[name] = one_entry(module, name)
        own = for_entry(options, made[name], module)
        found = _distribute(made[name], own, chosen)
        chosen = found if chosen is None else chosen.with_others(found)
    replace_program(module, joined({name: made[name] for name in names}))
    assert chosen is not None
    return chosen


def _distribute(
    module: ModuleOp, options: DistributionOptions, chosen: Chosen | None
) -> Chosen:
    """
    Distributes a program with one entry in place, and returns the choices that other
    programs can follow.
    """
    options = options.on_one_mesh()
    known = KnownLocations.of(module)
    # A program without the optimizer stores parameters split in any case.
    outside = parameters_of_gradients(entry_function(module))
    has_choice = may_gather_first(options) and not outside
    late = module.clone() if has_choice else None
    if late is None:
        _, made = _distributed(module, options, chosen)
    elif options.is_pipelined:
        # The best combination of one program is the only one that is tried for the
        # other, as both overlap in the same ways and take long to simulate.
        other, made = _distributed(late, options, chosen, gather_first=False)
        tried = _without_hoisting(other, options)
        found, own = _distributed(module, options, chosen, tried=tried)
        if _is_better(found, other):
            made = own
        else:
            replace_program(module, late)
    else:
        found, made = _distributed(module, options, chosen)
        other, own = _distributed(late, options, chosen, gather_first=False)
        if _is_better(other, found):
            replace_program(module, late)
            made = own
    if known is not None:
        known.complete(module)
    verify_distribution(module)
    return made


def _without_hoisting(
    found: Overlapped | None, options: DistributionOptions
) -> Sequence[Combination]:
    """
    Returns the combination of overlaps in `found`, or, if nothing was gained, the plain
    overlap that `options` ask for. No gathers move out of functions, as in a program in
    which all micro-batches share them these have moved already.
    """
    if found is None or found.combination is None:
        return [Combination(frozenset(options.overlapped or KINDS))]
    return [replace(found.combination, hoist=False)]


def _is_better(first: Overlapped | None, second: Overlapped | None) -> bool:
    """
    Whether the first program is better than the second program. A program that fits
    into memory is better than a program that does not. If both fit, or neither does,
    the faster program is better. Programs that were not simulated are not better.
    """
    if first is None or second is None:
        return False
    one, other = first.simulation, second.simulation
    return (not one.fits, one.step_time_s) < (not other.fits, other.step_time_s)


def _distributed(
    module: ModuleOp,
    options: DistributionOptions,
    chosen: Chosen | None,
    *,
    gather_first: bool = True,
    tried: Sequence[Combination] = (),
) -> tuple[Overlapped | None, Chosen]:
    """
    Distributes a program in place. Returns the overlap of communication, if `options`
    ask for it, and the choices that other programs can follow. If `tried` is given,
    only these combinations of overlaps are tried.
    """
    try:
        choose_layouts(module, options, chosen, gather_first=gather_first)
    except DistIRError as error:
        if not options.stage_shapes():
            raise
        shapes = ";".join(options.stage_meshes)
        sizes = [f"{a}={n}" for a in AXES if (n := getattr(options, a)) > 1]
        raise DistIRError(
            f"{error} (for stage_meshes={shapes}, layouts are chosen with {' '.join(sizes)})"
        ) from error
    layouts, stages = stored_layouts(module), dict[str, int]()
    partition(module)
    if options.is_pipelined:
        follows = chosen is not None and chosen.stages
        stages = make_pipeline_as_asked(
            module, options, () if follows else options.stages
        )
    made = Chosen(layouts, stages)
    lower_reshards(module)
    share_gathers_as_asked(module, options)
    pass_keys_on_as_asked(module, options)
    check_expectations(module, options.k if options.is_pipelined else 1)
    if options.buckets:
        bucket_collectives_of(module)
    offload_states_as_asked(module, options)
    if not options.overlap:
        return None, made
    kinds = options.overlapped or KINDS
    found = overlap_communication(
        module, kinds=kinds, profiles=options.profile, tried=tried
    )
    return found, made


def share_gathers_as_asked(module: ModuleOp, options: DistributionOptions) -> None:
    """
    Lets the first micro-batch gather parameters that are stored split for all others,
    with the ZeRO stages 1 and 2.
    """
    if options.is_pipelined and options.zero in (1, 2):
        gather_once(module, ZERO_AXES)


def pass_keys_on_as_asked(module: ModuleOp, options: DistributionOptions) -> None:
    """
    If the option `context` is `ring`, turns attention whose keys are gathered over axis
    `c` into rings, in which devices pass blocks of keys on. Attention that cannot be a
    ring is named in a note. Raises DistIRError if no attention can be a ring.
    """
    if options.c == 1 or options.context != "ring":
        return
    rings = ring_attention(module, "c")
    if not rings.made:
        raise DistIRError(
            "distribute: no attention of the program can be a ring, as all of it has a mask "
            "or keys of another sequence; choose context=gather"
        )
    if rings.left:
        add_notes(
            module,
            [f"distribute: keys are gathered for {what}" for what in rings.left],
        )


def offload_states_as_asked(module: ModuleOp, options: DistributionOptions) -> None:
    """
    If the option `offload_states` is set, keeps the optimizer's states in the host's
    memory. Raises DistIRError if the program has no such states.
    """
    if options.offload_states and not offload_states(module):
        raise DistIRError(
            "distribute: the program keeps no states of an optimizer that could be in the "
            "host's memory; leave out offload_states, or train with adam, adamw, or sgd with "
            "momentum"
        )


def _add_mesh(module: ModuleOp, options: DistributionOptions) -> None:
    if any(isinstance(op, MeshOp) for op in module.body.block.ops):
        raise DistIRError(
            "distribute makes its own mesh; remove the device.mesh of the module"
        )
    cluster = cluster_in(module, options.cluster, NAME)
    degrees = [(axis, getattr(options, axis)) for axis in AXES]
    if options.cache_split == "positions":
        degrees = with_head_axis(module, degrees)
    # Messages always name axes d and t, and other axes only if their size is above 1.
    devices = [(axis, n) for axis, n in degrees if n > 1 or axis in ("d", "t")]
    if options.stage_meshes:
        check_size([("p", options.p)], cluster, NAME)
        _check_stages(options, cluster)
        declare_mesh(module, [(TIME_AXIS, options.k), *devices], cluster, NAME)
        return
    if options.is_pipelined:
        check_size([*devices, ("p", options.p)], cluster, NAME)
        devices = [(TIME_AXIS, options.k), *devices]
    add_mesh(module, devices, cluster, NAME)


def with_head_axis(
    module: ModuleOp, degrees: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """
    Returns the axes of a mesh and their sizes, for caches that are split along
    positions where the devices of axis `t` outnumber their heads. Axis `t` then has as
    many devices as divide the heads, and the axis `HEAD_AXIS` has the devices that
    share the same heads. Raises DistIRError if no cache has positions.
    """
    heads, sharing = axes_of_heads(module, dict(degrees)["t"])
    if sharing == 1:
        return degrees
    own = [(axis, heads if axis == "t" else n) for axis, n in degrees]
    return [*own, (HEAD_AXIS, sharing)]


def _check_stages(options: DistributionOptions, cluster: ClusterOp | None) -> None:
    """
    Raises DistIRError if the meshes of the stages together need more devices than the
    cluster has.
    """
    if options.stage_meshes == (SEARCH,) or cluster is None:
        return
    if options.devices > cluster.size:
        raise DistIRError(
            f"{NAME}: stages on {' and '.join(options.stage_meshes)} need {options.devices} "
            f"devices, but cluster @{cluster.sym_name.data} has {cluster.size}; choose "
            f"smaller meshes or a larger cluster"
        )
