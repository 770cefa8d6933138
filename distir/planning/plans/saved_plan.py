"""
The plan that a search found, with all the data for distributing the program by this
plan later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    ModuleOp,
    SymbolRefAttr,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.exceptions import ParseError

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.entries import Chosen, ask_for_stages
from distir.planning.grid.evaluate import distribute_as
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.layouts.planned_arguments import (
    PlannedArgument,
    check_same_arguments,
    planned_arguments,
)
from distir.planning.layouts.searched import SearchedLayouts
from distir.planning.plans.plan import GridPlan, LayoutPlan
from distir.planning.plans.plan_search import PlanSearch, SearchResults
from distir.planning.plans.programs import cluster_of_text, replace_cluster, trains
from distir.planning.plans.result import Simulated, from_json
from distir.planning.requests import Requests, named_argument
from distir.program import (
    argument_names,
    entry_function,
    entry_points,
    functions,
)
from distir.program.entries import one_entry
from distir.sharding.verification import verify_distribution
from distir.system.output_files import write_text
from distir.version import __version__

_FORMAT = "distir plan 2"


def _nothing() -> str:
    return ""


@dataclass(frozen=True)
class SavedPlan:
    """
    The best plan that `distir.search` found for a model, with its simulated time and
    memory. Users know this class as `distir.Plan`.

    - `result`: the plan, its time and memory, and its layouts if they were searched;
    - `cluster`: the text of the cluster that the plan is for; `profiles`: the names of
      the profiles used in its simulation;
    - `arguments`: the arguments of the program that the search distributed; `program`:
      a digest of that program's ops; `trains`: whether the program is a training step;
    - `requests`: the user's requests, which the plan keeps;
    - `run`: the model's configuration and the further data that a training system
      needs, for `distir export`, if `distir plan` made the plan. No data of `result`
      are repeated here;
    - `reason`: a function that returns the text of `explain`;
    - `searched`: a function that returns the program of the search; None for a plan
      from a file;
    - `outcomes`: the results of all plans of the search; None for a plan from a file.
    """

    result: Simulated
    cluster: str
    profiles: tuple[str, ...]
    arguments: tuple[PlannedArgument, ...]
    program: str
    trains: bool
    requests: Requests
    reason: Callable[[], str] = field(default=_nothing, compare=False, repr=False)
    searched: Callable[[], ModuleOp] | None = field(
        default=None, compare=False, repr=False
    )
    outcomes: SearchResults | None = field(default=None, compare=False, repr=False)
    run: Mapping[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """
        Returns the state to pickle: all fields but `reason`, `searched` and `outcomes`,
        which may hold the whole search.
        """
        state = {**vars(self), "reason": _nothing, "searched": None, "outcomes": None}
        state.pop("module", None)
        return state

    @staticmethod
    def of(search: PlanSearch, reason: Callable[[], str]) -> SavedPlan:
        """
        Returns the best plan of `search`, which must have found one. `reason` is called
        to explain the plan.
        """
        best = search.best
        assert best is not None
        programs = search.programs
        module = programs(best.plan.batch)
        program, is_trained = _digest(module), trains(module)
        cluster = next(o for o in module.body.block.ops if isinstance(o, ClusterOp))
        text = str(cluster)
        if isinstance(best.plan, LayoutPlan) and best.layouts is not None:
            SearchedLayouts(programs.requests).annotate(module, best.plan, best.layouts)
        return SavedPlan(
            best,
            text,
            tuple(profile.name for profile in programs.profiles),
            planned_arguments(module),
            program,
            is_trained,
            Requests(programs.requests.shard, programs.requests.whole),
            reason,
            lambda: programs(best.plan.batch),
            search.outcomes(),
        )

    @staticmethod
    def for_program(
        module: ModuleOp,
        result: Simulated,
        cluster: ClusterOp,
        profiles: Sequence[str],
        reason: str,
    ) -> SavedPlan:
        """
        Returns a plan of the grid that no search chose: `result` is its prediction for
        the sequential program `module` on `cluster` with `profiles`, and `reason` its
        explanation.
        """
        assert isinstance(result.plan, GridPlan)
        return SavedPlan(
            result,
            str(cluster),
            tuple(profiles),
            planned_arguments(module),
            _digest(module),
            trains(module),
            Requests(),
            lambda: reason,
        )

    @cached_property
    def module(self) -> ModuleOp:
        """
        The IR of the distributed program: the program of the search, distributed by the
        plan. Raises DistIRError for a plan from a file, because files do not hold the
        program.
        """
        if self.searched is None:
            raise DistIRError(
                "the plan comes from a file, which does not hold the program that it was "
                "searched for; distir.distribute(program, plan=...).module distributes it"
            )
        module = self.searched()
        self.distribute(module)
        return module

    @property
    def results(self) -> SearchResults:
        """
        All results of the search. `SearchResults.save` writes them as JSON. Raises
        DistIRError for a plan from a file, which holds only its own result.
        """
        if self.outcomes is None:
            raise DistIRError(
                "the plan comes from a file, which does not hold the other results of the "
                "search; search again for them"
            )
        return self.outcomes

    @property
    def time_s(self) -> float:
        """The simulated seconds of a step."""
        return self.result.step_time_s

    @property
    def memory_bytes(self) -> int:
        """The peak memory, in bytes, on the device with the least memory to spare."""
        return self.result.peak_memory_bytes

    @property
    def batch(self) -> int:
        """The global batch size."""
        return self.result.plan.batch

    @property
    def devices(self) -> int:
        """The number of devices that the plan uses. Each device runs one process."""
        plan = self.result.plan
        if isinstance(plan, GridPlan):
            return plan.devices
        assert isinstance(plan, LayoutPlan)
        return plan.p * prod(size for _, size in plan.axes)

    @property
    def batch_parts(self) -> int:
        """The number of parts into which a micro-batch is split over devices."""
        plan = self.result.plan
        if isinstance(plan, GridPlan):
            return plan.batch_parts
        assert isinstance(plan, LayoutPlan)
        sizes = dict(plan.axes)
        split = {
            shard.axis
            for argument in self.arguments
            if argument.role == "input" and argument.dims
            for shard in argument.dims[0]
        }
        return prod(size for axis, size in sizes.items() if axis in split)

    def explain(self) -> str:
        """
        Explains the plan: for each module of the model, the text shows the split of its
        parameters and the time that it takes. For comparison, the text also describes
        the fastest plan that divides the model differently, and says whether the memory
        limit decided the choice.
        """
        return self.reason()

    def __str__(self) -> str:
        return (
            f"{self.result.plan} on {self.devices} devices: {self.time_s:.4g} s a step, "
            f"{self.memory_bytes / 1e9:.4g} GB of "
            f"{self.result.memory_bytes / 1e9:.4g} GB on a device"
        )

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(str(self))}</p><pre>{escape(self.explain())}</pre>"

    # Files

    def save(self, path: str | Path) -> None:
        """
        Writes the plan to a JSON file. Raises DistIRError if the file cannot be
        written.
        """
        layouts = self.result.layouts
        data: dict[str, Any] = {
            "format": _FORMAT,
            "distir": __version__,
            "result": self.result.to_json(),
            "layouts": layouts and layouts.to_json(),
            "arguments": [argument.to_json() for argument in self.arguments],
            "program": self.program,
            "trains": self.trains,
            "shard": self.requests.shard,
            "whole": self.requests.whole,
            "profiles": self.profiles,
            "cluster": self.cluster,
            "explanation": self.explain(),
        }
        if self.run is not None:
            data["run"] = self.run
        lines = (f"{json.dumps(key)}: {json.dumps(data[key])}" for key in data)
        try:
            write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error

    @staticmethod
    def load(path: str | Path) -> SavedPlan:
        """
        Reads a plan from a file that `save` wrote. Raises DistIRError if the file
        cannot be read, holds no plan, or was written by another version of DistIR.
        """
        try:
            data = json.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise DistIRError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise _no_plan(path, "it is not JSON") from error
        if not isinstance(data, dict) or "format" not in data:
            raise _no_plan(path, "`distir search --save-plan` writes one")
        if data["format"] != _FORMAT or data.get("distir") != __version__:
            raise DistIRError(
                f"{path} was written by another version of DistIR "
                f"({data.get('distir')}; this is {__version__}); search again"
            )
        try:
            found = _from_json(data)
        except (KeyError, TypeError, ValueError, AttributeError, ParseError) as error:
            raise _no_plan(path, "it is damaged; search again") from error
        return found

    # Distributing

    def cluster_op(self) -> ClusterOp:
        """Returns a new, detached copy of the cluster."""
        return cluster_of_text(self.cluster)

    def distribute(self, module: ModuleOp, what: str = "the program") -> None:
        """
        Distributes `module`, the program of the search, in place, and verifies the
        result. Nothing is searched. Raises DistIRError for any other program; `what`
        names the program in the message. If the search distributed one entry of a
        program with several entries, `module` may be the whole program, and all its
        entries are distributed.
        """
        several = [one_entry(module, name) for name in entry_points(module)]
        searched = next((e for e in several if _digest(e) == self.program), None)
        if searched is not None:
            self._distribute_entries(module, searched, what)
            return
        if several:
            raise DistIRError(
                f"the plan is for none of the entries {' and '.join(entry_points(module))} "
                f"of {what}; search one with --entry"
            )
        check_same_arguments(module, self.arguments, what)
        if _digest(module) != self.program:
            raise DistIRError(
                f"the plan is for another program than {what}: its arguments are the "
                f"same, but its ops are not; search a plan for this one"
            )
        replace_cluster(module, self.cluster_op())
        distribute_as(module, self.result, self.requests, self.profiles)

    def _distribute_entries(
        self, module: ModuleOp, searched: ModuleOp, what: str
    ) -> None:
        """
        Distributes all entries of `module` with the options of the plan, which was
        found for the entry `searched`.
        """
        check_same_arguments(searched, self.arguments, what)
        if not isinstance(self.result.plan, GridPlan):
            raise DistIRError(
                f"the plan chooses layouts of its own for one entry of {what}, which other "
                f"entries cannot follow; search without --auto"
            )
        replace_cluster(module, self.cluster_op())
        requests = _of_known(self.requests, entry_function(searched))
        distribute(module, self.result.plan.options(requests.shard))

    def distribute_step(self, module: ModuleOp, chosen: Chosen | None = None) -> Chosen:
        """
        Distributes a step that returns gradients instead of updating parameters, in
        place, and verifies the result. The optimizer runs outside of the program: it
        gets parameters and gradients split as finely as the plan splits the optimizer's
        states. Returns the choices for other programs of the same model. Follows the
        choices of the first step (`chosen`), if given; without `chosen`, the step must
        have the plan's batch size. Raises DistIRError for another model or batch size,
        or for a plan for inference.
        """
        if not self.trains:
            raise DistIRError(
                "the plan is for inference, but a training step is to be distributed; "
                "search with a loss and an optimizer"
            )
        if chosen is None:
            check_same_arguments(module, self.arguments, "the module")
        return self._follow(module, self.result.plan, chosen, stored=True)

    def without(self, options: Mapping[str, Any]) -> SavedPlan:
        """
        Returns the plan with the option values `options` in place of its own. Options
        that the plan does not have are ignored. Searched layouts stay.
        """
        plan = self.result.plan
        known = {name: v for name, v in options.items() if hasattr(plan, name)}
        return replace(self, result=replace(self.result, plan=replace(plan, **known)))

    def distribute_forward(self, module: ModuleOp, chosen: Chosen) -> None:
        """
        Distributes a forward pass of the plan's model, in place, and verifies the
        result. Parameters are split as in the plan, and are on the pipeline stages in
        `chosen`. Raises DistIRError if the plan does not fit the program.
        """
        own = self.result.plan
        chunks = own.pipeline.forward_chunks(own.k)
        if chunks is None:
            chosen = replace(chosen, stages={})
        plan = replace(
            own, checkpoint="none", schedule="", stages="", chunks=chunks or 0
        )
        if isinstance(plan, GridPlan):
            plan = replace(plan, zero=0, no_sync=False, offload_states=False)
        self._follow(module, plan, chosen, stored=False)

    def _follow(
        self, module: ModuleOp, plan: Any, chosen: Chosen | None, *, stored: bool
    ) -> Chosen:
        replace_cluster(module, self.cluster_op())
        requests = _of_known(self.requests, entry_function(module))
        if isinstance(plan, GridPlan):
            return distribute(module, plan.options(requests.shard), chosen)
        if chosen is not None and chosen.stages:
            ask_for_stages(module, chosen.stages)
            plan = replace(plan, stages="")
        searched = SearchedLayouts(Requests())
        stages = searched.follow(module, plan, self.arguments, stored=stored)
        verify_distribution(module)
        return Chosen({}, stages)


def _from_json(data: Mapping[str, Any]) -> SavedPlan:
    result, layouts = from_json(data["result"]), data["layouts"]
    if not isinstance(result, Simulated):
        raise ValueError(f"{result.plan} is not possible")
    if layouts is not None:
        result = replace(result, layouts=ChosenLayouts.from_json(layouts))
    elif isinstance(result.plan, LayoutPlan):
        raise ValueError("there are no layouts")
    explanation = str(data["explanation"])
    cluster_of_text(data["cluster"])
    return SavedPlan(
        result,
        data["cluster"],
        tuple(map(str, data["profiles"])),
        tuple(map(PlannedArgument.from_json, data["arguments"])),
        str(data["program"]),
        bool(data["trains"]),
        Requests(tuple(map(str, data["shard"])), tuple(map(str, data["whole"]))),
        lambda: explanation,
        run=dict(data["run"]) if "run" in data else None,
    )


def _no_plan(path: str | Path, why: str) -> DistIRError:
    return DistIRError(f"{path} holds no plan: {why}")


def _of_known(requests: Requests, function: FuncOp) -> Requests:
    """
    Returns `requests` without the requests for arguments that the function `function`
    lacks.
    """
    names = argument_names(function)

    def is_known(pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in names)

    return replace(
        requests,
        shard=tuple(s for s in requests.shard if is_known(named_argument(s))),
        whole=tuple(filter(is_known, requests.whole)),
    )


def _digest(module: ModuleOp) -> str:
    """
    Returns a digest of a program's ops, with their types, operands and properties.
    Programs with different ops have different digests. Names are left out, and so are
    floating-point properties such as a learning rate, because no plan depends on them.
    """
    digest = hashlib.sha256()
    for function in functions(module).values():
        block = function.body.block
        numbers: dict[SSAValue, int] = {a: i for i, a in enumerate(block.args)}
        for op in block.ops:
            operands = [numbers[value] for value in op.operands]
            types = ", ".join(str(result.type) for result in op.results)
            digest.update(f"{op.name} {operands}: {types}\n".encode())
            for name, value in sorted(op.properties.items()):
                digest.update(_text(name, value))
            for result in op.results:
                numbers[result] = len(numbers)
    return digest.hexdigest()


def _text(name: str, value: Attribute) -> bytes:
    """
    Returns the bytes that the property `name` of an op adds to the digest of a program.
    """
    if isinstance(value, FloatAttr | SymbolRefAttr):
        return b""
    if isinstance(value, DenseIntOrFPElementsAttr):
        return f"{name}: {value.type}\n".encode() + value.data.data
    return f"{name}: {value}\n".encode()
