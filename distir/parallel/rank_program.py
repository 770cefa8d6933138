"""A package on this rank: its tables, its meshes, and the class that this rank runs."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec

from distir.errors import DistIRError
from distir.frontends.torch.modules.opaque_calls import OpaqueCalls
from distir.parallel.autocast import outside_autocast
from distir.parallel.compilation import CONSTANTS, INTERFACE
from distir.parallel.packages import Package
from distir.parallel.placements import innermost_shard, placements
from distir.parallel.scripts.source_places import named_places

_REPLICAS = "replicas"
"""
The axis of the mesh that is used for a mesh without axes. This mesh has one device,
which holds every tensor whole.
"""


class RankProgram:
    """
    The part of a package that this rank runs.

    - `arguments`, `results`: this rank's arguments and results: rows of the package's
      tables, by their index there;
    - `inputs`, `labels`: the names of the arguments that a call passes, in order;
    - `stages`: the pipeline stages of all arguments, by name;
    - `constants`: the tensors that the exporter made, by name;
    - `gradients`: the arguments that are gradients of results, by the results' names.
      If there are any, the caller computes the loss: it calls `start` and `resume`
      instead of `run`;
    - `parts`: the number of losses that the caller computes in a step: one for each
      micro-batch, 1 for the whole batch, or 0 if the program computes the loss.
    """

    def __init__(
        self,
        package: Package,
        device: torch.device,
        opaque: Mapping[str, OpaqueCalls] | None = None,
        sharded_outputs: bool = False,
        program: Any = None,
    ):
        """
        Reads a package. `program` is the Python module with the program, by default the
        package's main program. `opaque` has the opaque modules that the program calls,
        by their names. `sharded_outputs` tells whether outputs from which the caller
        computes the loss stay split over axes that do not split the batch.
        """
        self._sharded_outputs = sharded_outputs
        self.device = device
        self._opaque = opaque or {}
        self._opaque_module: Any = package.module("opaque") if self._opaque else None
        self.rank = dist.get_rank()
        program = package.program if program is None else program
        if len(program.RANKS) != dist.get_world_size():
            raise DistIRError(
                f"the plan is for {len(program.RANKS)} processes, but {dist.get_world_size()} "
                f"were started; start as many, or choose other degrees of parallelism"
            )
        self._runtime = package.runtime
        self.folder = package.folder
        self.specs: Mapping[str, Any] = program.MESHES
        process_meshes = {
            name: self._runtime.ProcessMesh(spec, device.type)
            for name, spec in self.specs.items()
        }
        self._device_meshes = {
            name: self._device_mesh(self.specs[name], mesh.device_mesh)
            for name, mesh in process_meshes.items()
        }
        own = program.RANKS[self.rank]
        with torch.device(device):
            self.body = own.program(process_meshes, own.numbers)
        self._distributed: dict[Any, DTensorSpec] = {}
        self.all_arguments: Sequence[Any] = program.ARGUMENTS
        self.all_results: Sequence[Any] = program.RESULTS
        self.arguments = {i: program.ARGUMENTS[i] for i in own.program.arguments}
        self.results = {i: program.RESULTS[i] for i in own.program.results}
        self.gradients = {
            spec.gradient_of: spec for spec in program.ARGUMENTS if spec.gradient_of
        }
        self.parts: int = max(rank.program.places.parts for rank in program.RANKS)
        self._held = {spec.name for spec in self.arguments.values()}
        interface = json.loads((package.folder / INTERFACE).read_text())
        self.inputs: list[str] = interface["inputs"]
        self.labels: list[str] = interface["labels"]
        self.stages: dict[str, int] = interface["stages"]
        tensors = package.module("tensors")
        self.constants: dict[str, torch.Tensor] = tensors.load(
            package.folder / CONSTANTS
        )
        self._initial = package.module("initial")
        self._batches = package.module("batches")
        self._batch_axes: dict[str, int] | None = None

    def __deepcopy__(self, memo: object) -> RankProgram:
        """
        Returns the program itself. Copies of a parallel module can share it, because it
        holds no values of the module.
        """
        return self

    def _device_mesh(self, spec: Any, made: DeviceMesh | None) -> DeviceMesh:
        if made is not None:
            return made
        return DeviceMesh(
            self.device.type,
            torch.tensor(spec.ranks, device="cpu"),
            mesh_dim_names=(_REPLICAS,),
        )

    def initial(self, spec: Any, seed: int) -> torch.Tensor:
        """
        Returns this rank's part of a new parameter. Its values are drawn from `seed`
        and its name.
        """
        mesh = self.specs.get(spec.mesh)
        return self._initial.parameter(spec, mesh, self.rank, seed).to(self.device)

    def unread(self, name: str, parameter: torch.Tensor, seed: int) -> torch.Tensor:
        """
        Returns initial values, drawn from `seed` and `name`, for a parameter that has
        no values and that no op reads.
        """
        shape = tuple(parameter.shape)
        spec = self._runtime.Tensor(name, parameter.dtype, shape, role="parameter")
        return self._initial.parameter(spec, None, self.rank, seed).to(self.device)

    def part(self, spec: Any, whole: torch.Tensor) -> torch.Tensor:
        """Returns this rank's part of the tensor `whole`, as a copy."""
        mesh = self.specs.get(spec.mesh)
        # A copy, so that the whole tensor can go.
        return self._runtime.shard(whole, spec, mesh, self.rank).clone()

    def distributed(self, spec: Any, part: torch.Tensor) -> DTensor:
        """Returns the DTensor described by `spec`, given this rank's `part` of it."""
        key = spec.mesh, spec.shape, spec.split, part.dtype
        known = self._distributed.get(key)
        if known is not None:
            # What `from_local` does, without 0.1 ms of checks for each gradient of a step.
            return DTensor.__new__(DTensor, part, known, requires_grad=False)
        stride = tuple(prod(spec.shape[i + 1 :]) for i in range(len(spec.shape)))
        found = DTensor.from_local(
            part,
            self._device_meshes[spec.mesh],
            self._placements(spec),
            run_check=False,
            shape=torch.Size(spec.shape),
            stride=stride,
        )
        self._distributed[key] = found._spec  # pyright: ignore[reportPrivateUsage]
        return found

    def _placements(self, spec: Any) -> list[Placement]:
        axes = self.specs[spec.mesh].axes
        return placements(spec.shape, spec.split, axes) if axes else [Replicate()]

    def held(self, spec: Any, part: torch.Tensor) -> torch.Tensor:
        """
        Returns `part` as a DTensor if it belongs to a parameter or to a split buffer;
        otherwise returns `part` itself.
        """
        if spec.role == "parameter" or any(spec.split):
            return self.distributed(spec, part)
        return part

    def complex_held(
        self, spec: Any, part: torch.Tensor, whole: torch.Tensor
    ) -> torch.Tensor:
        """
        Returns this rank's part of a complex buffer. It shares the memory of `part`,
        which holds the same numbers as pairs of real numbers. If the buffer is split,
        the result is a DTensor. If the pairs themselves are split, the result is a copy
        of the `whole` buffer.
        """
        if spec.split and spec.split[-1]:
            return whole.to(self.device).clone()
        own = torch.view_as_complex(part)
        if not any(spec.split):
            return own
        mesh = self._device_meshes[spec.mesh]
        return DTensor.from_local(
            own,
            mesh,
            self._placements(spec),
            run_check=False,
            shape=whole.shape,
            stride=whole.contiguous().stride(),
        )

    def replicated(self, parameter: torch.Tensor) -> DTensor:
        """
        Returns, as a replicated DTensor, a parameter that no op reads. The mesh is that
        of this rank's other parameters. Every rank must pass the same values.
        """
        first = [s.mesh for s in self.arguments.values() if s.role == "parameter"]
        others = [name for name, s in self.specs.items() if self.rank in s.ranks]
        mesh = self._device_meshes[(first + others)[0]]
        copies = [Replicate()] * mesh.ndim
        return DTensor.from_local(parameter, mesh, copies, run_check=False)

    def other(self, spec: Any) -> torch.Tensor:
        """
        Returns this rank's part of a value that the source module lacks: a constant
        that the exporter made, or zeros as the initial value of a state.
        """
        if spec.name in self.constants:
            return self.part(spec, self.constants[spec.name]).to(self.device)
        shape = self._runtime.local_shape(spec, self.specs.get(spec.mesh))
        return torch.zeros(shape, dtype=spec.dtype, device=self.device)

    def sharding_of(self, spec: Any) -> tuple[Any, ...]:
        """
        Returns a key for the placement of a tensor's parts. Two tensors, even of two
        programs, have equal keys if their parts are on the same devices.
        """
        mesh = self.specs.get(spec.mesh)
        split = spec.split if any(spec.split) else ()
        return () if mesh is None else (mesh.ranks, mesh.axes, split)

    @property
    def inputs_with_gradients(self) -> frozenset[str]:
        """The names of the inputs and labels whose gradients the program returns."""
        given = {s.name for s in self.all_arguments if s.role in self._batches.ROLES}
        return frozenset(s.of for s in self.all_results if s.of in given)

    @property
    def gives_outputs(self) -> bool:
        """Whether the caller computes the loss on this rank."""
        return bool(self.body.places.parts)

    @property
    def is_pipeline(self) -> bool:
        """
        Whether the program is a pipeline, in which ranks hold different arguments.
        """
        world = dist.get_world_size()
        return any(len(spec.ranks) < world for spec in self.specs.values())

    def holds(self, spec: Any) -> bool:
        """Whether this rank has a part of the argument `spec`."""
        return spec.name in self._held

    # The batch

    def batch_axes(self) -> dict[str, int]:
        """
        Returns the axes that split the first dimension of inputs and labels, with their
        sizes.
        """
        found = self._batch_axes
        if found is None:
            split = [
                spec
                for spec in self.all_arguments
                if spec.role in self._batches.ROLES
                and any(spec.split)
                and not spec.gradient_of
            ]
            found = dict(self._batches.batch_axes(split, self.specs))
            self._batch_axes = found
        return found

    def place_in_batch(self, rank: int | None = None) -> tuple[int, int]:
        """
        Returns the index of the part of the batch that the caller must pass to `rank`
        (by default this rank), and the number of parts.
        """
        rank = self.rank if rank is None else rank
        meshes = self.specs.values()
        return self._batches.place_in_batch(self.batch_axes(), meshes, rank)

    def of_batch(self, spec: Any, given: torch.Tensor) -> torch.Tensor:
        """
        Returns this rank's part of an input in the layout that the program takes.
        `given` is the part of the batch that the caller passed. Raises DistIRError if
        its shape or type is wrong.
        """
        expected, own = self._batches.share(spec, self.batch_axes())
        what, another = f"{spec.role} {spec.name!r}", "an example of another batch"
        if spec.name in self.labels:
            what = "label" if len(self.labels) == 1 else f"label {spec.name!r}"
            another = "an example of such labels (labels=...)"
        if list(given.shape) != expected:
            whole = f"a batch of {spec.shape[0]}" if spec.shape else "the batch"
            advice = "give that"
            first, *rest = given.shape or (0,)
            if expected and rest == expected[1:] and 0 < first < expected[0]:
                advice = (
                    "a loader whose samples come to an end gives less: leave its last "
                    "batch out (drop_last=True of a DataLoader)"
                )
            raise DistIRError(
                f"{what} has shape {list(given.shape)}, but rank {self.rank} takes "
                f"{expected}, its part of {whole}; {advice}, or parallelize with {another}"
            )
        if given.dtype != spec.dtype:
            raise DistIRError(
                f"{what} is {given.dtype}, but the program takes {spec.dtype}; give that, "
                f"or parallelize with {another}"
            )
        mesh = self.specs.get(spec.mesh)
        part = self._runtime.shard(given, own, mesh, self.rank)
        return part.to(self.device).contiguous()

    def part_shape(self, spec: Any) -> list[int]:
        """Returns the shape of this rank's part of an input or label in a call."""
        return self._batches.share(spec, self.batch_axes())[0]

    @property
    def rows_of_part(self) -> int:
        """The number of samples in this rank's part of a batch."""
        specs = [s for s in self.all_arguments if s.name in self.inputs and s.shape]
        split = [s for s in specs if self.is_split_with_batch(s)] or specs
        return self.part_shape(split[0])[0]

    def is_of_batch(self, index: int) -> bool:
        """
        Whether a result has a row for each sample of this rank's part of the batch.
        """
        spec = self.all_results[index]
        if not self.batch_axes():
            sizes = [a.shape[0] for a in self.all_arguments if a.name in self.inputs]
            return bool(spec.shape) and spec.shape[0] == sizes[0]
        return self.is_split_with_batch(spec)

    def is_split_with_batch(self, spec: Any) -> bool:
        """Whether the axes of the batch split the first dimension of a tensor."""
        axes = self.batch_axes()
        return bool(spec.split) and any(name in axes for name, _ in spec.split[0])

    # Running

    @contextmanager
    def running(self) -> Generator[None]:
        """
        A context manager in which methods of the program run: opaque modules are the
        module's own, autograd records nothing, `torch.autocast` has no effect, and
        errors name the source.
        """
        if self._opaque_module is not None:
            self._opaque_module.MODULES = self._opaque
        program = self.folder / "program.py"
        with torch.no_grad(), outside_autocast(), named_places(program):
            yield

    def run(self, values: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """
        Runs the program on this rank's parts of all arguments, given by name. Returns
        the results by their index in the table of results. `torch.autocast` has no
        effect on the program.
        """
        arguments = [values[spec.name] for spec in self.arguments.values()]
        with self.running():
            results = self._runtime.results_of(self.body, arguments)
        return dict(zip(self.results, results, strict=True))

    def start(self, values: Mapping[str, torch.Tensor]) -> Any:
        """
        Runs the forward pass of a program whose loss the caller computes, on this
        rank's parts of all arguments except the gradients of results. Returns the call,
        an object that `taken` and `resume` take.
        """
        arguments = [values.get(spec.name) for spec in self.arguments.values()]
        with self.running():
            return self._runtime.started(self.body, arguments)

    def taken(self, call: Any) -> dict[int, torch.Tensor]:
        """
        Returns the results of a forward pass, by their index in the table of results,
        and removes them from the call.
        """
        places = list(self.results)
        given = [places[i] for i in self.body.places.given]
        return dict(zip(given, call.take(), strict=True))

    def resume(
        self, call: Any, gradients: dict[str, torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        """
        Runs the backward pass of a call, up to the next micro-batch if there is one.
        `gradients` has this rank's parts of the gradients of results, by the results'
        names, and is emptied. Returns the remaining results by index at the end of the
        step, and an empty dictionary before.
        """
        specs = list(self.arguments.values())
        awaited = [specs[i].gradient_of for i in self.body.places.awaited]
        ordered = [gradients.pop(name) for name in awaited]
        with self.running():
            self._runtime.resumed(call, ordered)
        if call.results is None:
            return {}
        given = set(self.body.places.given)
        others = [index for i, index in enumerate(self.results) if i not in given]
        return dict(zip(others, call.results, strict=True))

    def of_micro_batch(self, spec: Any) -> Any:
        """
        Returns the description `spec` of a result or its gradient, reduced to the rows
        of one micro-batch, for which the caller computes the loss.
        """
        if self.parts < 2:
            return spec
        shape = (spec.shape[0] // self.parts, *spec.shape[1:])
        rows = [tuple((axis, None) for axis, _ in own) for own in spec.split[:1]]
        return replace(spec, shape=shape, split=(*rows, *spec.split[1:]))

    def given_output(self, index: int, value: torch.Tensor) -> torch.Tensor:
        """
        Returns the rows of the output `value` that belong to this rank's part of the
        batch. All ranks that have this output must call this method.
        """
        spec = self.of_micro_batch(self.all_results[index])
        if spec.mesh is None or self._shard_of(index) is not None:
            return value
        return self._of_batch_only(spec, value)

    def _shard_of(self, index: int) -> tuple[int, tuple[str, int | None]] | None:
        """
        Returns the dimension of result `index` that is still split when a call returns
        the result. Also returns the axis that splits the dimension, with its run
        length. Returns None if the call returns the whole result for this rank's part
        of the batch.
        """
        if not self._sharded_outputs:
            return None
        return innermost_shard(self.all_results[index].split, self.batch_axes())

    def as_sharded(self, index: int, value: torch.Tensor) -> torch.Tensor:
        """
        Returns the output of a call for result `index`, with the rows of this rank's
        part of the batch. `value` is the tensor that `given_output` returned. If the
        result stays split over an axis, the output is a DTensor on the mesh of this
        axis with `value` as this rank's shard. Otherwise the output is `value` itself.
        """
        found = self._shard_of(index)
        if found is None:
            return value
        dim, shard = found
        mesh = self._device_meshes[self.all_results[index].mesh][shard[0]]
        shape = list(value.shape)
        shape[dim] *= mesh.size()
        split = [(shard,) if i == dim else () for i in range(len(shape))]
        return DTensor.from_local(
            value,
            mesh,
            placements(shape, split, {shard[0]: mesh.size()}),
            run_check=False,
            shape=torch.Size(shape),
            stride=tuple(prod(shape[i + 1 :]) for i in range(len(shape))),
        )

    def gradient_part(self, index: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """
        Returns this rank's part of the gradient of result `index` in the layout that
        the program takes. `gradient` belongs to the rows that `given_output` returned;
        None stands for zeros. For a result without separate rows for each part of the
        batch, the gradients of all parts are summed. Every rank that has the result
        must call this method.
        """
        result = self.of_micro_batch(self.all_results[index])
        spec = self.of_micro_batch(self.gradients[result.name])
        mesh = self.specs.get(spec.mesh)
        axes = self.batch_axes()
        rows = result.split[0] if result.split else ()
        kept = tuple(shard for shard in rows if shard[0] in axes)
        sizes = {name: axes[name] for name, _ in kept}
        is_sharded = self._shard_of(index) is not None
        if gradient is None:
            shape, _ = self._batches.share(result, sizes)
            if is_sharded:
                shape = self._runtime.local_shape(result, mesh)
            gradient = torch.zeros(shape, dtype=spec.dtype, device=self.device)
        gradient = gradient.to(self.device, spec.dtype).contiguous()
        if mesh is None:
            return gradient
        for axis in axes:
            if axis not in sizes:
                group = self._device_meshes[spec.mesh].get_group(axis)
                gradient = gradient.clone()
                dist.all_reduce(gradient, group=group)
        if is_sharded and result.split == spec.split:
            return gradient
        expected, own = self._batches.share(spec, sizes)
        first = tuple(spec.split[0][: len(kept)]) if spec.split else ()
        if not is_sharded and list(gradient.shape) == expected and first == kept:
            return self._runtime.shard(gradient, own, mesh, self.rank).contiguous()
        held = result
        if not is_sharded:
            held = replace(result, split=(kept, *((),) * (len(result.shape) - 1)))
        whole = self.distributed(held, gradient).full_tensor()
        return self.part(spec, whole)

    def batch_groups(self) -> list[Any]:
        """
        Returns the process groups of the axes that split the batch, outermost first.
        Ranks of such a group differ only in their part of the batch.
        """
        axes = self.batch_axes()
        name = next(name for name, s in self.specs.items() if self.rank in s.ranks)
        mesh = self._device_meshes[name]
        return [mesh.get_group(axis) for axis in axes]

    def everywhere(self, spec: Any, value: torch.Tensor | None) -> torch.Tensor:
        """
        Returns, on all ranks, a whole tensor that only the ranks of its mesh hold. All
        other ranks pass None as `value`.
        """
        ranks = self.specs[spec.mesh].ranks if spec.mesh else [0]
        if len(ranks) < dist.get_world_size():
            if value is None:
                value = torch.empty(spec.shape, dtype=spec.dtype, device=self.device)
            value = value.contiguous()
            dist.broadcast(value, ranks[0])
        assert value is not None
        return value

    def moved(
        self, spec: Any, value: torch.Tensor | None, target: RankProgram, wanted: Any
    ) -> torch.Tensor | None:
        """
        Returns this rank's part of a value of this program, in the layout of the
        argument `wanted` of the program `target`. Returns None if this rank holds no
        part of that argument. Every rank must call this method, unless the layouts are
        the same.
        """
        if self.sharding_of(spec) == target.sharding_of(wanted):
            return value
        if value is not None and any(spec.split):
            value = self.distributed(spec, value).full_tensor()
        whole = self.everywhere(spec, value)
        return target.part(wanted, whole) if target.holds(wanted) else None

    def output(self, index: int, value: torch.Tensor | None) -> torch.Tensor:
        """
        Returns the rows of a result that belong to this rank's part of the batch. With
        a pipeline, the ranks of all stages get them. Every rank must call this method.
        """
        spec = self.all_results[index]
        mesh = self.specs.get(spec.mesh)
        if value is not None and mesh is not None:
            value = self._of_batch_only(spec, value)
        if mesh is None or len(mesh.ranks) == dist.get_world_size():
            assert value is not None
            return value
        return self._from_its_stage(spec, value)

    def _of_batch_only(self, spec: Any, value: torch.Tensor) -> torch.Tensor:
        """
        Returns this rank's part of a result after resharding it to a split over the
        axes of the batch only.
        """
        axes = self.batch_axes()
        kept = tuple(
            tuple(s for s in split if dim == 0 and s[0] in axes)
            for dim, split in enumerate(spec.split)
        )
        if kept == tuple(map(tuple, spec.split)):
            return value
        made = self.distributed(spec, value)
        wanted = self._placements(replace(spec, split=kept))
        return made.redistribute(placements=wanted).to_local()

    def _from_its_stage(self, spec: Any, value: torch.Tensor | None) -> torch.Tensor:
        own, count = self.place_in_batch()
        axes = self.batch_axes()
        is_split = bool(spec.split) and any(s[0] in axes for s in spec.split[0])
        shape = list(spec.shape)
        if is_split:
            shape[0] //= count
        found = torch.empty(shape, dtype=spec.dtype, device=self.device)
        ranks = self.specs[spec.mesh].ranks
        for place in range(count if is_split else 1):
            source = next(
                r for r in ranks if not is_split or self.place_in_batch(r)[0] == place
            )
            sent = value if source == self.rank else torch.empty_like(found)
            assert sent is not None
            sent = sent.contiguous()
            dist.broadcast(sent, source)
            if place == own or not is_split:
                found = sent
        return found
