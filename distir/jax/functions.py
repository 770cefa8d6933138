"""`distir.jax.import_function`, `distir.jax.distribute` and `distir.jax.search`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distir.errors import DistIRError
from distir.facade.programs import distribute as distribute_program
from distir.facade.search import grid_search
from distir.jax.importing import TracedFunction, trace
from distir.jax.plan import JaxPlan, inexpressible
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.planning.grid.results import nothing_fits
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.result import Simulated
from distir.tools.files import apply_passes


def import_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    donate_argnums: int | Sequence[int] = (),
    batch_argnums: int | Sequence[int] | None = None,
    outline: bool = True,
) -> TracedFunction:
    """
    Imports a function of JAX as a sequential program. `args` is the tuple of its
    arguments, which are values or `jax.ShapeDtypeStruct`s.

    If a part of the result has the same pytree as an argument, this part replaces the
    argument in the next step. `donate_argnums` names arguments in which single arrays
    are replaced too. `batch_argnums` names the arguments that hold the batch. By
    default these are the arguments that no result replaces, or the last argument if no
    argument is replaced. With `outline`, equal layers become one function. Raises
    DistIRError for a function that cannot be imported.
    """
    found = trace(function, args, donate_argnums, batch_argnums)
    if outline:
        apply_passes(found.program.module, OutlineRepeatsPass())
    return found


def distribute(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    cluster: str,
    devices: int | None = None,
    d: int = 1,
    t: int = 1,
    zero: int = 0,
    shard: Sequence[str] = (),
    whole: Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    batch_argnums: int | Sequence[int] | None = None,
) -> JaxPlan:
    """
    Distributes a function of JAX over `d` x `t` devices of a cluster, and returns the
    plan with its shardings. `zero` is the ZeRO stage of a training step: 0, 1 or 3.
    `shard`, such as `state.params.w:0=t`, and `whole` request layouts of arguments, as
    in `distir distribute`. `donate_argnums` and `batch_argnums` are explained at
    `import_function`. Raises DistIRError if the function cannot be imported or
    distributed in this way.
    """
    _check_stages((zero,), "distribute")
    traced = import_function(
        function, args, donate_argnums=donate_argnums, batch_argnums=batch_argnums
    )
    options: dict[str, Any] = {"cluster": cluster, "d": d, "t": t, "zero": zero}
    if devices is not None:
        options["devices"] = devices
    return _expressible(traced, options, list(shard), list(whole))


def _check_stages(stages: Sequence[int], function: str) -> None:
    """Raises DistIRError for a ZeRO stage that shardings cannot express."""
    if unknown := sorted({*stages} - {0, 1, 3}):
        raise DistIRError(
            f"distir.jax.{function}: zero has {unknown[0]}; shardings of arguments and "
            f"results can say 0, 1 and 3"
        )


def _expressible(
    traced: TracedFunction,
    options: dict[str, Any],
    shard: list[str],
    whole: list[str],
) -> JaxPlan:
    """
    Returns a plan that `PartitionSpec` can express. Replaces each block-cyclic split of
    an argument by a split into one contiguous part per device, and distributes the
    program again with these requests; a note of the plan names the arguments. Raises
    DistIRError if a block-cyclic layout remains.
    """
    program = distribute_program(traced.program, shard=shard, whole=whole, **options)
    dealt = inexpressible(program)
    if not dealt:
        return JaxPlan(traced, program)
    for name, layout in dealt.items():
        shard += [
            f"{name}:{dim}={part.axis}"
            for dim, parts in enumerate(layout.dims)
            for part in parts
        ]
    program = distribute_program(traced.program, shard=shard, whole=whole, **options)
    if left := inexpressible(program):
        name, layout = next(iter(left.items()))
        raise DistIRError(
            f"distir.jax: {name} has layout {layout}, whose runs PartitionSpec cannot say; "
            f"ask for another one, such as whole=[{name!r}]"
        )
    notes = (
        f"distir.jax: runs of {', '.join(dealt)} became one piece for each device, as "
        f"PartitionSpec has no runs",
    )
    return JaxPlan(traced, program, notes)


def search(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    cluster: str,
    devices: int,
    zero: int | Sequence[int] = (0, 1, 3),
    jobs: int = 1,
    shard: Sequence[str] = (),
    whole: Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    batch_argnums: int | Sequence[int] | None = None,
    ways: list[dict[str, int]] | None = None,
) -> JaxPlan:
    """
    Finds the fastest way to split a JAX function over exactly `devices` devices of a
    cluster such that the step fits into the memory of the devices. Returns the plan
    with its shardings.

    The search tries all data-parallel and tensor-parallel degrees. For a training step,
    the search also tries the ZeRO stages `zero`, which may be 0, 1 and 3: shardings
    cannot express ZeRO 2. A single stage is not searched. `jobs` is the number of
    processes. `ways` receives the degrees and ZeRO stages of all plans that fit, the
    fastest first, as options of `distribute`. `shard`, `whole`, `donate_argnums` and
    `batch_argnums` are explained at `distribute`. Raises DistIRError if no plan fits
    into memory, or for a ZeRO stage other than 0, 1 and 3.
    """
    stages = (zero,) if isinstance(zero, int) else tuple(zero)
    _check_stages(stages, "search")
    traced = import_function(
        function, args, donate_argnums=donate_argnums, batch_argnums=batch_argnums
    )
    target: dict[str, Any] = {"cluster": cluster, "devices": devices}
    degrees = [(d, devices // d, 1) for d in range(1, devices + 1) if devices % d == 0]
    is_step = bool(traced.updated)
    found = grid_search(
        traced.program,
        **target,
        world_size=devices,
        degrees=degrees,
        zero=stages if is_step else (0,),
        overlap="off",
        jobs=jobs,
        shard=list(shard),
        whole=list(whole),
    )
    # With requests, arguments may be split over axes that the bounds do not know of.
    if not shard:
        found.leave_out_too_large()
    found.run()
    if found.interrupted:
        raise KeyboardInterrupt
    if found.best is None:
        results = sorted(found.results.values(), key=lambda result: result.plan)
        raise DistIRError(f"distir.jax.search: {nothing_fits(results)}")
    results = found.outcomes().ranked
    if ways is not None:
        plans = [result.plan for result in results]
        grid = [plan for plan in plans if isinstance(plan, GridPlan)]
        ways += [{"d": plan.d, "t": plan.t, "zero": plan.zero} for plan in grid]
    return _fastest(traced, results, target, shard, whole)


def _fastest(
    traced: TracedFunction,
    ranked: Sequence[Simulated],
    target: dict[str, Any],
    shard: Sequence[str],
    whole: Sequence[str],
) -> JaxPlan:
    """
    Returns the fastest plan that `PartitionSpec` can express, among `ranked`, the plans
    of a search that fit into memory. A plan may become slower when it is made
    expressible, so the function also compares plans that were slower in the search.
    Raises DistIRError if no plan fits.
    """
    best: JaxPlan | None = None
    for result in ranked:
        if best is not None and result.step_time_s >= best.time_s:
            break
        own = result.plan
        assert isinstance(own, GridPlan)
        options = {**target, "d": own.d, "t": own.t, "zero": own.zero}
        plan = _expressible(traced, options, list(shard), list(whole))
        if not plan.simulated.simulation.fits:
            continue
        if best is None or plan.time_s < best.time_s:
            best = plan
    if best is None:
        raise DistIRError(
            f"distir.jax.search: {len(ranked)} ways to split the function fit into memory, "
            f"but none does with layouts that JAX has; use more devices"
        )
    return best
