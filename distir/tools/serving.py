"""Searches for a service plan, from the arguments of `distir serve-plan`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import inf

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.simulator.profiles.files import ProfileChoice, profile_names
from distir.planning.serving.model_sizes import served_model
from distir.planning.serving.options import ServiceOptions
from distir.planning.serving.planned import PlannedService
from distir.planning.serving.plans import LatencyLimits
from distir.planning.serving.search import ServiceSearch
from distir.planning.serving.step_simulator import BuiltSteps
from distir.serving.requests import Workload, poisson_workload, read_trace

_ENGINES = "-serving"
"""The suffix of the names of profiles for inference engines."""


def check_service_arguments(arguments: Namespace) -> None:
    """Raises DistIRError if arguments are missing or contradict each other."""
    given = [
        f"--{name}"
        for name in ("prompt", "generate", "rate")
        if getattr(arguments, name) is not None
    ]
    if arguments.trace is not None:
        if given:
            raise DistIRError(
                f"--trace has the lengths and times of requests; leave out "
                f"{' and '.join(given)}, or --trace"
            )
    elif arguments.prompt is None or arguments.generate is None:
        raise DistIRError(
            "say how long requests are: --prompt and --generate, or a --trace of requests"
        )
    if arguments.memory_share == 0:
        raise DistIRError("--memory-share 0 leaves no memory for caches; use 0.9")


def planned_service(
    module: ModuleOp,
    name: str,
    arguments: Namespace,
    note: Callable[[str], None],
) -> PlannedService:
    """
    Finds the best plan for a service with the decoder in `module`, called `name` in
    messages. `note` is called with remarks for the user. Raises DistIRError if the
    program is not a decoder, if requests are too long for it, or if no replica can
    serve them.
    """
    own = {f.name: getattr(arguments, f.name) for f in fields(ServiceOptions)}
    for key in ("batched_tokens", "profile"):
        own[key] = tuple(own[key])
    options = ServiceOptions(**own)
    model = served_model(module, name)
    rate = options.rate
    if options.trace is not None:
        trace, rate = read_trace(arguments.trace, options.prefix_hits)

        def work(count: int) -> Workload:
            return trace
    else:
        assert options.prompt is not None and options.generate is not None
        prompt, generate = options.prompt, options.generate

        def work(count: int) -> Workload:
            return poisson_workload(
                count,
                prompt,
                generate,
                prefix_hits=options.prefix_hits,
                seed=options.seed,
            )

    some = work(options.requests)
    model.check(some.longest)
    cluster = load_cluster(arguments.cluster, arguments.devices)
    devices = arguments.devices or cluster.size
    if devices > cluster.size:
        raise DistIRError(f"the cluster has {cluster.size} devices, not {devices}")
    profiles = _profiles(options.profile, cluster, note)
    limits = LatencyLimits(
        inf if options.ttft is None else options.ttft,
        inf if options.tpot is None else options.tpot,
        options.percentile,
    )
    formats = replace(
        model.sizes.formats,
        weights=options.weights_dtype or model.sizes.formats.weights,
        cache=options.cache_dtype or model.sizes.formats.cache,
    )
    sizes = replace(model.sizes, formats=formats)
    search = ServiceSearch(
        BuiltSteps(sizes, options.expert_imbalance),
        cluster,
        profiles,
        devices,
        work,
        rate,
        limits,
        options,
    )
    return PlannedService(
        name,
        sizes,
        cluster.sym_name.data,
        devices,
        profiles,
        some.mean_prompt,
        some.mean_generated,
        some.longest,
        rate,
        limits,
        options,
        search.run(),
    )


def _profiles(
    given: Sequence[str], cluster: ClusterOp, note: Callable[[str], None]
) -> tuple[str, ...]:
    """
    Returns the profiles `given` by the user. Without them, returns the profiles for
    inference engines on the cluster's kinds of devices. If one of these does not exist,
    returns the profiles that the cluster names, with a remark to `note`.
    """
    if given:
        return ProfileChoice.of(given, cluster).names
    known = profile_names()
    engines = [
        f"{kind.profile.data}{_ENGINES}" if kind.profile is not None else ""
        for kind in cluster.kinds
    ]
    if all(name in known for name in engines):
        return tuple(engines)
    choice = ProfileChoice.of((), cluster)
    what = choice.lacking or "the profile of the cluster is not one of an engine"
    note(f"{what}: steps of engines for inference may be shorter; see --profile")
    return choice.names
