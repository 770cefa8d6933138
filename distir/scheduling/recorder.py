"""
The objects for writing schedule scripts. They record ops of the `schedule` dialect and
do nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    UnitAttr,
    i64,
)
from xdsl.dialects.transform import (
    AnyOpType,
    AnyParamType,
    AnyValueType,
    NamedSequenceOp,
)
from xdsl.ir import Attribute, SSAValue

from distir.dialects.schedule import (
    AutocastOp,
    CudaGraphOp,
    DecomposeOp,
    ExpectOp,
    FindOp,
    FirstOp,
    KnobOp,
    MatchOp,
    MergeOp,
    OpaqueModulesOp,
    ParametersOp,
    PlaceOp,
    RecomputeOp,
    RequireOp,
    ShardOp,
    SplitLinearOp,
    StageOp,
    WholeOp,
)
from distir.errors import DistIRError
from distir.program import name_hint
from distir.scheduling.found_groups import FoundGroups
from distir.scheduling.knobs import (
    Knob,
    KnobChoice,
    cases,
    knob_attribute,
    knobs_of,
)
from distir.scheduling.recording import (
    Recording,
    caller,
    integer_attribute,
    text_attribute,
)
from distir.scheduling.tracing import traced

SEQUENCE = "schedule"
"""The symbol of the schedule that a script records."""


@dataclass(frozen=True)
class Columns:
    """
    Splits a linear layer by columns: mesh axis `axis` splits its outputs and its bias.
    The following ops work on parts. Example: `Columns("t")`.
    """

    axis: str


@dataclass(frozen=True)
class Rows:
    """
    Splits a linear layer by rows: mesh axis `axis` splits its inputs. Each device then
    has terms of a sum, and an all-reduce adds them. The bias stays whole. Example:
    `Rows("t")`.
    """

    axis: str


class Parameters:
    """Parameters of modules, as `Modules.param` returns them."""

    def __init__(self, recording: Recording, handle: SSAValue):
        self._recording = recording
        self._handle = handle

    def split(self, dim: int, axis: str, run: int | None = None) -> Parameters:
        """
        Requests that mesh axis `axis` splits dimension `dim` of these parameters, in
        runs of `run` elements if given: `s["wte"].param("weight").split(0, "t")`.
        """
        attributes: dict[str, Attribute] = {
            "dim": integer_attribute(dim),
            "axis": text_attribute(axis),
        }
        if run is not None:
            attributes["run"] = integer_attribute(run)
        self._recording.add(
            ShardOp.create(operands=[self._handle], attributes=attributes)
        )
        return self

    def whole(self, axis: str) -> Parameters:
        """
        Requests that mesh axis `axis` does not split these parameters. Other axes, such
        as the axis of ZeRO, may still split them: `s["head"].param().whole("t")`.
        """
        self._recording.add(
            WholeOp.create(
                operands=[self._handle], attributes={"axis": text_attribute(axis)}
            )
        )
        return self


class Modules:
    """
    Modules of the model. `modules["attention.*"]` selects modules inside these modules
    by their paths. The parts of a path are separated by dots; `*` stands for any text
    in one part, `**` for any number of parts.
    """

    def __init__(self, recording: Recording, handle: SSAValue):
        self._recording = recording
        self._handle = handle

    def __getitem__(self, pattern: str) -> Modules:
        return self.match(pattern)

    def match(self, pattern: str, count: int | None = None) -> Modules:
        """
        Returns the modules inside these modules whose path matches `pattern`. If
        `count` is given, exactly `count` modules must match:
        `s.match("encoder.layer.*", count=24)`.
        """
        attributes = {} if count is None else {"count": integer_attribute(count)}
        op = MatchOp.create(
            operands=[self._handle],
            result_types=[AnyOpType()],
            properties={"pattern": text_attribute(pattern)},
            attributes=attributes,
        )
        return Modules(self._recording, self._recording.add(op).results[0])

    def first(self, amount: Knob | int | float) -> Modules:
        """
        Returns the first of these modules: `amount` modules if `amount` is an integer,
        or this fraction of all modules, rounded down, if `amount` is a float:
        `s["h.*"].first(0.5)`.
        """
        operands, attributes = [self._handle], dict[str, Attribute]()
        if isinstance(amount, Knob):
            operands.append(amount.handle)
        else:
            attributes["amount"] = knob_attribute(amount)
        op = FirstOp.create(
            operands=operands, result_types=[AnyOpType()], attributes=attributes
        )
        return Modules(self._recording, self._recording.add(op).results[0])

    @overload
    def find(self, pattern: re.Pattern[str]) -> Modules: ...
    @overload
    def find(
        self, pattern: Callable[..., object], *, optional: bool = False
    ) -> FoundGroups: ...
    def find(
        self,
        pattern: Callable[..., object] | re.Pattern[str],
        *,
        optional: bool = False,
    ) -> Modules | FoundGroups:
        r"""
        Returns the groups of ops in these modules that compute the function `pattern`.
        The function is traced without shapes: `layers.find(lambda x, b: F.gelu(x +
        b))`. There must be at least one group, unless `optional`.

        If `pattern` is a regular expression, returns the modules whose path matches it:
        `s.find(re.compile(r".*\.(query|key)"))`.
        """
        if isinstance(pattern, re.Pattern):
            op = MatchOp.create(
                operands=[self._handle],
                result_types=[AnyOpType()],
                properties={"pattern": text_attribute(pattern.pattern)},
                attributes={"regex": UnitAttr()},
            )
            return Modules(self._recording, self._recording.add(op).results[0])
        try:
            region = traced(pattern)
        except DistIRError as error:
            raise DistIRError(f"{caller()}: {error}") from error
        op = FindOp.create(
            operands=[self._handle],
            result_types=[AnyOpType()],
            attributes={"optional": UnitAttr()} if optional else {},
            regions=[region],
        )
        return FoundGroups(self._recording, self._recording.add(op).results[0])

    def decompose(self) -> Modules:
        """
        Replaces ops in these modules by their decompositions, such as a product with a
        bias by a product and a sum: `s["pooler.dense"].decompose()`. Ops without a
        decomposition stay.
        """
        self._recording.add(DecomposeOp.create(operands=[self._handle]))
        return self

    def param(self, pattern: str = "**") -> Parameters:
        """
        Returns parameters of these modules by name: the name of a parameter in its
        module must match `pattern`: `s["wte"].param("weight")`.
        """
        op = ParametersOp.create(
            operands=[self._handle],
            result_types=[AnyValueType()],
            properties={"pattern": text_attribute(pattern)},
        )
        return Parameters(self._recording, self._recording.add(op).results[0])

    def split(self, how: Columns | Rows) -> Modules:
        """
        Requests a split of these modules, which must be linear layers:
        `s["h.*.mlp.c_fc"].split(Columns("t"))`.
        """
        by = "columns" if isinstance(how, Columns) else "rows"
        attributes = {"by": text_attribute(by), "axis": text_attribute(how.axis)}
        self._recording.add(
            SplitLinearOp.create(operands=[self._handle], attributes=attributes)
        )
        return self

    def plan(self, plan: Mapping[str, Columns | Rows]) -> Modules:
        """
        Requests splits of linear layers in these modules. `plan` maps the path of a
        layer to its split: `layer.plan({"mlp.up": Columns("t"), "mlp.down":
        Rows("t")})`.
        """
        for pattern, how in plan.items():
            self[pattern].split(how)
        return self

    def merge(self, *layers: str, name: str, groups: int = 1) -> Modules:
        """
        Merges several linear layers of each of these modules into one layer called
        `name`. The layers must read the same value. Existing weights and checkpoints
        still fit. Example: `s["h.*.attention.self"].merge("query", "key", "value",
        name="qkv")`.

        To split layers of different sizes, give the number of `groups`, such as the
        number of key-value heads in grouped-query attention. Each group then holds its
        part of every layer.
        """
        attributes: dict[str, Attribute] = {
            "layers": ArrayAttr([text_attribute(layer) for layer in layers]),
            "merged": text_attribute(name),
        }
        if groups != 1:
            attributes["groups"] = integer_attribute(groups)
        self._recording.add(
            MergeOp.create(operands=[self._handle], attributes=attributes)
        )
        return self

    def stage(self) -> Modules:
        """
        Requests that a pipeline stage begins with each of these modules:
        `s["h.6"].stage()`.
        """
        self._recording.add(StageOp.create(operands=[self._handle]))
        return self

    def expect(
        self, axis: str, *, backward: bool = False, **collectives: int
    ) -> Modules:
        """
        Requests a check of the distributed program: the forward pass of each of these
        modules (or its backward pass, if `backward`) must have exactly the given number
        of collectives of each kind over mesh axis `axis`, and none of a kind that is
        not given: `s["h.*"].expect("t", all_reduce=2)`.
        """
        counts = {kind: integer_attribute(count) for kind, count in collectives.items()}
        attributes: dict[str, Attribute] = {
            "collectives": DictionaryAttr(counts),
            "axis": text_attribute(axis),
        }
        if backward:
            attributes["backward"] = UnitAttr()
        self._recording.add(
            ExpectOp.create(operands=[self._handle], attributes=attributes)
        )
        return self

    def cast(self, dtype: Literal["bf16", "f16"]) -> Modules:
        """
        Makes these modules compute in 16 bits as PyTorch's autocast does; parameters
        and norms stay in f32: `s["transformer.h.*"].cast("bf16")`. Lines of the script
        that work on groups of ops (`find`) must come before the call of `cast`.
        """
        self._recording.add(
            AutocastOp.create(
                operands=[self._handle], attributes={"dtype": text_attribute(dtype)}
            )
        )
        return self

    def out(self, index: int = 0) -> Outputs:
        """
        Returns one of the values that each of these modules computes and other modules
        use. `index` counts these values from 0, in the order of the program:
        `s["lm_head"].out(0).whole("t")`.
        """
        return Outputs(self._recording, self._handle, index)

    def cuda_graph(self) -> Modules:
        """
        Requests that packages capture these modules as CUDA graphs, for the forward and
        for the backward pass: `s["transformer.h.*"].cuda_graph()`. If a module cannot
        be captured, `distir lower` prints the reason.
        """
        self._recording.add(CudaGraphOp.create(operands=[self._handle]))
        return self

    def opaque(
        self,
        rule: str,
        *,
        weights: Mapping[str, str] | None = None,
        keep: str = "",
        flops: str | int | None = None,
        memory: str | int | None = None,
    ) -> Modules:
        """
        Requests that the import does not trace these modules: they run unchanged on
        each device's parts, with their own autograd. The arguments are those of
        `distir.opaque`: `s["h.*.moe"].opaque("b s d -> b s d", keep="d")`. This method
        is for schedules of `distir.parallelize`, which imports the model itself.
        """
        given = {"keep": keep, "flops": flops, "memory": memory}
        attributes: dict[str, Attribute] = {
            name: text_attribute(str(value))
            for name, value in {"rule": rule, **given}.items()
            if value is not None and value != ""
        }
        if weights:
            own = {name: text_attribute(dims) for name, dims in weights.items()}
            attributes["weights"] = DictionaryAttr(own)
        self._recording.add(
            OpaqueModulesOp.create(operands=[self._handle], attributes=attributes)
        )
        return self

    def recompute(
        self,
        policy: str | Knob,
    ) -> Modules:
        """
        Requests that the backward pass recomputes the values of these modules instead
        of keeping them. `policy` is a policy of `activation-checkpoint`:
        `s["h.*"].first(0.5).recompute("full")`, or
        `recompute("save:onnx.MatMul+train.attention")`.
        """
        operands, attributes = [self._handle], dict[str, Attribute]()
        if isinstance(policy, Knob):
            operands.append(policy.handle)
        else:
            attributes["policy"] = text_attribute(policy)
        self._recording.add(
            RecomputeOp.create(operands=operands, attributes=attributes)
        )
        return self


class Outputs:
    """
    One value of each of several modules, as `Modules.out` returns it. Its methods
    request layouts; the communication follows from the layouts.
    """

    def __init__(self, recording: Recording, handle: SSAValue, index: int):
        self._recording = recording
        self._handle = handle
        self._index = index

    def split(self, dim: int, axis: str) -> Outputs:
        """
        Requests that mesh axis `axis` splits dimension `dim` of the value:
        `s["transformer.h.*"].out(0).split(1, "t")`.
        """
        return self._place(axis, {"dim": integer_attribute(dim)})

    def whole(self, axis: str) -> Outputs:
        """
        Requests that mesh axis `axis` does not split the value. Partial sums are then
        reduced: `s["lm_head"].out(0).whole("t")`.
        """
        return self._place(axis, {})

    def _place(self, axis: str, attributes: dict[str, Attribute]) -> Outputs:
        own = {"index": IntegerAttr(self._index, i64), "axis": text_attribute(axis)}
        self._recording.add(
            PlaceOp.create(operands=[self._handle], attributes={**own, **attributes})
        )
        return self


class Schedule(Modules):
    """
    The schedule of a program, recorded from a script. A script is a file with a
    function `schedule` that takes an object of this class:

    ```python
    from distir.scheduling import Columns, Rows, Schedule

    def schedule(s: Schedule) -> None:
        layers = s["encoder.layer.*"]
        layers.plan({"intermediate.dense": Columns("t"), "output.dense": Rows("t")})
        layers.first(s.knob("ratio", [1.0, 0.5, 0.0])).recompute("full")
    ```

    The object stands for the whole model. Its methods only record ops.
    """

    def __init__(self, name: str = SEQUENCE):
        recording = Recording(name)
        super().__init__(recording, recording.model)

    def knob(
        self,
        name: str,
        values: Sequence[KnobChoice] | Callable[..., Sequence[KnobChoice]],
        *,
        option: Literal["batch", "d", "t", "p", "k", "zero"] | None = None,
    ) -> Knob:
        """
        Returns a knob: a tunable value, chosen when the schedule is applied (`--set
        NAME=VALUE`) or tuned (`--tune`). Its value is one of `values`: `s.knob("ratio",
        [1.0, 0.5, 0.0])`.

        `values` may depend on earlier knobs. `values` is then a function of these knobs
        that returns the allowed values; its parameters have the names of the knobs:
        `s.knob("ratio", lambda batch: [1.0] if batch > 128 else [1.0, 0.5])`. With
        `option`, tuning uses the knob's value also as that option of `distribute`, or
        as the batch size.
        """
        known, attributes = self._recording.knobs, dict[str, Attribute]()
        earlier: list[Knob] = []
        if callable(values):
            earlier = knobs_of(values, known, caller())
            made = [ArrayAttr(map(knob_attribute, v)) for v in cases(values, earlier)]
            attributes["values"] = ArrayAttr(made)
        else:
            attributes["values"] = ArrayAttr(map(knob_attribute, values))
        if option is not None:
            attributes["option"] = text_attribute(option)
        op = KnobOp.create(
            operands=[knob.handle for knob in earlier],
            result_types=[AnyParamType()],
            properties={"knob": text_attribute(name)},
            attributes=attributes,
        )
        result = self._recording.add(op).results[0]
        result.name_hint = name_hint(name)
        return known.setdefault(name, Knob(name, result))

    def require(self, predicate: Callable[..., bool]) -> None:
        """
        Excludes combinations of knob values. The parameters of `predicate` are names of
        knobs; a combination is excluded if it returns False: `s.require(lambda batch,
        ratio: batch * (1 - ratio) < 100)`.
        """
        knobs = knobs_of(predicate, self._recording.knobs, caller())
        holds = [IntegerAttr(int(bool(v)), 1) for v in cases(predicate, knobs)]
        self._recording.add(
            RequireOp.create(
                operands=[knob.handle for knob in knobs],
                attributes={"holds": ArrayAttr(holds)},
            )
        )

    def recorded(self) -> NamedSequenceOp:
        """
        Returns the schedule in its IR form. Afterwards, the schedule cannot be
        extended.
        """
        return self._recording.end()
