"""
The plan for a function of JAX: how its arguments and results are split over devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from textwrap import fill
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh as DeviceMesh
from jax.sharding import NamedSharding, PartitionSpec

from distir.dialects.dist import Layout, layout_of
from distir.errors import DistIRError, did_you_mean, listed
from distir.facade.model_program import ModelProgram
from distir.facade.show import ShownProgram, show
from distir.facade.simulate import SimulatedProgram, simulate
from distir.jax.collectives import WIDTH, Collectives, compared
from distir.jax.constraints import constrained, layouts_inside
from distir.jax.importing import TracedFunction
from distir.program import argument_names, entry_function, return_op
from distir.sharding.mesh import Mesh, meshes
from distir.transforms.collective_decomposition import decompose


class Remat(NamedTuple):
    """
    A policy for `jax.checkpoint`. `name` describes in words the values that the policy
    saves. `saved` holds their names if the policy saves values by name.
    """

    name: str
    policy: Callable[..., Any]
    saved: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class JaxPlan:
    """
    The distribution of a JAX function. `program` is the distributed program, made from
    the `traced` function.

    `in_shardings` and `out_shardings` are for `jax.jit`. `print` shows the simulated
    time and memory, and the layouts of the arguments. `remat` is the policy of
    `jax.checkpoint` that `search_remat` found.
    """

    traced: TracedFunction
    program: ModelProgram
    own_notes: tuple[str, ...] = ()
    remat: Remat | None = None

    @cached_property
    def layout_mesh(self) -> Mesh:
        """The mesh of the distributed program, without devices of JAX."""
        [mesh] = meshes(self.program.module).values()
        return mesh

    @cached_property
    def mesh(self) -> DeviceMesh:
        """
        The mesh of JAX's devices, with the axes of the program's mesh. Raises
        DistIRError if JAX has fewer devices than the plan.
        """
        own, devices = self.layout_mesh, jax.devices()
        if len(own.devices) > len(devices):
            raise DistIRError(
                f"distir.jax: the plan is for {len(own.devices)} devices, but JAX has "
                f"{len(devices)}; in_specs and out_specs need none"
            )
        chosen = np.array(devices[: len(own.devices)])
        sizes = [size for _, size in own.axes]
        return DeviceMesh(chosen.reshape(sizes), tuple(name for name, _ in own.axes))

    @cached_property
    def in_specs(self) -> Any:
        """The `PartitionSpec` of each argument: a tuple of pytrees."""
        layouts = self._argument_layouts
        specs = [_spec(layout) for layout in layouts]
        return jax.tree_util.tree_unflatten(self.traced.in_tree, specs)

    @cached_property
    def out_specs(self) -> Any:
        """The `PartitionSpec` of each result, in the pytree of the results."""
        specs = [_spec(layout) for layout in self._result_layouts]
        return jax.tree_util.tree_unflatten(self.traced.out_tree, specs)

    @property
    def in_shardings(self) -> Any:
        """The `NamedSharding` of each argument: a tuple of pytrees."""
        return self._placed(self.in_specs)

    @property
    def out_shardings(self) -> Any:
        """The `NamedSharding` of each result, in the pytree of the results."""
        return self._placed(self.out_specs)

    def _placed(self, specs: Any) -> Any:
        def placed(spec: PartitionSpec) -> NamedSharding:
            return NamedSharding(self.mesh, spec)

        return jax.tree_util.tree_map(
            placed, specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
        )

    @cached_property
    def _argument_layouts(self) -> list[Layout | None]:
        types = entry_function(self.program.module).function_type.inputs.data
        return [layout_of(t) for t in types[: len(self.traced.arguments.names)]]

    @cached_property
    def _result_layouts(self) -> list[Layout | None]:
        """
        The layouts of the results. JAX replicates a result that is partial in the
        program.
        """
        values = return_op(entry_function(self.program.module)).operands
        return [layout_of(value.type) for value in values]

    @cached_property
    def constraints(self) -> Mapping[str, PartitionSpec]:
        """
        The `PartitionSpec`s of values inside the function:

        - a value that the function names with `checkpoint_name`, under that name;
        - the last value of a scope that ops outside the scope use, under the scope's
          name. A scope is a `jax.named_scope` or a module of Flax.

        Values without a single layout that a `PartitionSpec` can express are left out.
        """
        found = layouts_inside(self.traced, self.program.module)
        return {name: _spec(layout) for name, layout in found.items()}

    def constrain(self, value: Any, name: str) -> Any:
        """
        Returns `value` with the sharding that `constraints` has for `name`, by
        `jax.lax.with_sharding_constraint`. Raises DistIRError if `constraints` does not
        have the name.
        """
        if name not in self.constraints:
            raise DistIRError(
                f"distir.jax: the plan has no layout for {name!r}; "
                f"{did_you_mean(name, self.constraints)}it has "
                f"{listed(list(self.constraints)) or 'none'}"
            )
        sharding = NamedSharding(self.mesh, self.constraints[name])
        return jax.lax.with_sharding_constraint(value, sharding)

    def constrained(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """
        Returns `function` with the shardings of `constraints` on all values that
        `function` names with `checkpoint_name`. Pass the returned function to
        `jax.jit`.
        """
        shardings = {
            name: NamedSharding(self.mesh, spec)
            for name, spec in self.constraints.items()
        }
        return constrained(function, shardings)

    @cached_property
    def simulated(self) -> SimulatedProgram:
        """The simulation of a step."""
        return simulate(self.program)

    def collectives(
        self, compiled: jax.stages.Compiled, *, lacks: Sequence[str] = ()
    ) -> Collectives:
        """
        Compares the collectives of the simulated step with the collectives of the
        function that XLA compiled with the shardings of this plan:
        `jax.jit(...).lower(*args).compile()`. `lacks` names collectives that the XLA
        backend does not have: `reduce_scatter`, which XLA for CPUs writes as an
        all-reduce, and `all_to_all`. The step is then simulated with the collectives
        that replace these. Raises DistIRError if the compiled function cannot be read,
        or if `lacks` has any other name.
        """
        text = compiled.as_text()
        if text is None:
            raise DistIRError(
                "distir.jax: the compiled function has no text; this backend of XLA "
                "does not give one"
            )
        simulated = self.simulated
        if lacks:
            module = self.program.module.clone()
            decompose(module, lacks)
            simulated = simulate(self.program.with_module(module))
        return compared(simulated.simulation, self.layout_mesh, text)

    @property
    def time_s(self) -> float:
        """The simulated time of a step, in seconds."""
        return self.simulated.step_time_s

    @property
    def memory_bytes(self) -> float:
        """The simulated peak memory of the device with the highest peak, in bytes."""
        return self.simulated.memory_bytes

    @cached_property
    def shown(self) -> ShownProgram:
        """The layouts of the arguments, and the communication of a step."""
        return show(self.program)

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for the user, for example on arguments that could not be split."""
        return [*self.traced.notes, *self.own_notes, *self.program.notes]

    def __str__(self) -> str:
        axes = " x ".join(f"{name}={size}" for name, size in self.layout_mesh.axes)
        tables = StringIO()
        self.shown.tables.print(tables, WIDTH)
        lines = [f"mesh {axes}: {self.simulated}", "", tables.getvalue().rstrip()]
        if self.remat is not None:
            lines += [f"jax.checkpoint saves {self.remat.name}"]
        notes = [
            fill(
                f"note: {note}",
                WIDTH,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for note in self.notes
        ]
        return "\n".join([*lines, *notes])

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.layout_mesh.axes)
        return f"<JaxPlan {axes}>"


def _spec(layout: Layout | None) -> PartitionSpec:
    """
    Returns a layout as a `PartitionSpec`. Raises DistIRError for a block-cyclic layout,
    because a `PartitionSpec` cannot express it.
    """
    if layout is None:
        return PartitionSpec()
    if any(shard.run for dim in layout.dims for shard in dim):
        raise DistIRError(
            f"distir.jax: PartitionSpec cannot say the runs of layout {layout}; ask for "
            f"another layout of the argument, by shard= or whole="
        )
    dims = [tuple(shard.axis for shard in shards) for shards in layout.dims]
    while dims and not dims[-1]:
        dims.pop()
    parts = [dim[0] if len(dim) == 1 else (dim or None) for dim in dims]
    return PartitionSpec(*parts)


def inexpressible(program: ModelProgram) -> dict[str, Layout]:
    """
    Returns the layouts of arguments that a `PartitionSpec` cannot express because they
    are block-cyclic, by the names of the arguments.
    """
    function = entry_function(program.module)
    found: dict[str, Layout] = {}
    types = function.function_type.inputs.data
    for name, type_ in zip(argument_names(function), types, strict=True):
        layout = layout_of(type_)
        if layout is not None and any(s.run for dim in layout.dims for s in dim):
            found[name] = layout
    return found
