"""`distir.jax.distribute` and `distir.jax.search`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distir.facade.programs import distribute as distribute_program
from distir.jax.importing import TracedFunction, trace
from distir.jax.plan import ShardingPlan, inexpressible
from distir.passes.outline_repeats import OutlineRepeatsPass
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
    arguments, values or `jax.ShapeDtypeStruct`s.

    Arguments that have the same pytree as a part of the result are those that it
    replaces in the next step; `donate_argnums` names single arrays that it replaces
    too. `batch_argnums` are the arguments that hold the batch, by default all that no
    result replaces, or the last one. With `outline`, equal layers become one function.
    Raises DistIRError.
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
) -> ShardingPlan:
    """
    Distributes a function of JAX over `d` x `t` devices of a cluster, and returns the
    shardings. `zero` is the ZeRO stage of a training step. `shard`, such as
    `state.params.w:0=t`, and `whole` are requests for arguments, as for `distir
    distribute`. The other options are those of `import_function`. Raises DistIRError.
    """
    traced = import_function(
        function, args, donate_argnums=donate_argnums, batch_argnums=batch_argnums
    )
    options: dict[str, Any] = {"cluster": cluster, "d": d, "t": t, "zero": zero}
    if devices is not None:
        options["devices"] = devices
    return _expressible(traced, options, list(shard), list(whole))


def _expressible(
    traced: TracedFunction,
    options: dict[str, Any],
    shard: list[str],
    whole: list[str],
) -> ShardingPlan:
    """
    Returns the plan of degrees. Arguments whose layout JAX cannot say are split in one
    piece for each device instead, which the program then has to live with.
    """
    program = distribute_program(traced.program, shard=shard, whole=whole, **options)
    for name, layout in inexpressible(program).items():
        shard += [
            f"{name}:{dim}={part.axis}"
            for dim, parts in enumerate(layout.dims)
            for part in parts
        ]
    if inexpressible(program):
        program = distribute_program(
            traced.program, shard=shard, whole=whole, **options
        )
    return ShardingPlan(traced, program)


def search() -> None: ...
