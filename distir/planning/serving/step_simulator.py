"""
Simulates inference steps at a few points, from which the step times of a service are
interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import NamedTuple, Protocol

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.onnx_ops.traits import PRODUCTS
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.quantized_weights import (
    GroupQuantizedLinearOp,
    QuantizedLinearOp,
)
from distir.frontends.models.serving_step import (
    DecoderSizes,
    build_serving_step,
    cache_patterns,
)
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.communication import send_seconds
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.profiles.files import load_profiles
from distir.interpreters.simulator.reports.argument_layouts import argument_layouts
from distir.planning.distribution.distribute import distribute
from distir.planning.distribution.options import DistributionOptions
from distir.planning.plans.programs import replace_cluster
from distir.program import functions
from distir.serving.step_times import StepTable, StepTime
from distir.sharding.mesh import MESH
from distir.transforms.expert_shards import assume_imbalance

SHORT = 64
"""The number of tokens in each cache of the decoding steps with short contexts."""

BATCHES = (1, 4, 16, 64, 128, 256, 1024)
"""The batches at which decoding steps are simulated."""

PROMPTS = (16, 128, 512, 2048, 8192)
"""The numbers of prompt tokens at which steps are simulated."""

_FEW = 2
"""
With expert parallelism only every second of these points is simulated, because there
are many degrees to evaluate.
"""

_PARTS = 4
"""
The number of shorter prompts that are compared with one prompt of the same total
length. The difference is the time of attention.
"""


_LAYER_OPS = (
    "onnx.Attention",
    QuantizedLinearOp.name,
    GroupQuantizedLinearOp.name,
)
"""The ops besides products whose first dimension has the sequences of a step."""


class Layers(NamedTuple):
    """
    The number of layers with an MLP (`dense`) and with a mixture of experts (`mixed`).
    """

    dense: int
    mixed: int


class StepPrograms(Protocol):
    """Interface for the programs of one model's steps."""

    @property
    def sizes(self) -> DecoderSizes:
        """The sizes of the model."""
        ...

    def program(self, batch: int, new: int, cached: int, layers: Layers) -> ModuleOp:
        """
        Returns the sequential program of a step, for a model with `layers`. Each of
        `batch` sequences has `new` new tokens after `cached` tokens.
        """
        ...

    @property
    def caches(self) -> Sequence[str]:
        """The names of the caches, each with the dimension of the heads: `NAME:DIM`."""
        ...


@dataclass(frozen=True)
class BuiltSteps:
    """
    The step programs of a decoder with sizes `sizes`, made by `build_serving_step`.
    `expert_imbalance` is the assumed load of the busiest device of expert parallelism,
    as a multiple of the mean load, or None for the default of `build_serving_step`.
    """

    sizes: DecoderSizes
    expert_imbalance: float | None = None

    @property
    def caches(self) -> Sequence[str]:
        """
        The names of the caches with heads, each as `NAME:DIM`. Caches of latents are
        left out, because every device has all latents.
        """
        return cache_patterns(self.sizes)

    def program(self, batch: int, new: int, cached: int, layers: Layers) -> ModuleOp:
        """
        Returns the program of a step for a model with `layers`. Each of `batch`
        sequences has `new` new tokens after `cached` tokens.
        """
        module = build_serving_step(self.sizes, batch, new, cached, layers=layers)
        assume_imbalance(module, self.expert_imbalance)
        return module


class SimulatedStep(NamedTuple):
    """
    A simulated step: its seconds, the bytes of parameters and of caches on a device,
    and the highest peak memory of a device in bytes.
    """

    seconds: float
    parameters: int
    caches: int
    peak: int


@dataclass(frozen=True)
class LayerCosts:
    """
    The time of a step in seconds: `fixed` outside of the layers, and the time of each
    layer with an MLP (`dense`) or a mixture of experts (`mixed`).
    """

    fixed: float
    dense: float
    mixed: float

    def layers(self, count: Layers) -> float:
        """Returns the seconds of the layers `count`."""
        return count.dense * self.dense + count.mixed * self.mixed


@dataclass
class StepSimulator:
    """
    Simulates steps of a model on replicas of `t` x `e` devices, and derives the steps
    of pipelines from them. A pipeline stage takes the time of its layers, and sends the
    hidden states to the next stage.

    Layers of one kind have equal costs, so programs with one or two layers of each kind
    give the times of the whole model. `longest` is the longest context in tokens.
    `max_sequences` is the most sequences and `batched_tokens` the most prompt tokens of
    a step, each for one of the `e` devices.
    """

    programs: StepPrograms
    cluster: ClusterOp
    profiles: Sequence[str]
    t: int
    e: int
    longest: int
    max_sequences: int
    batched_tokens: int
    simulations: int = 0
    _known: dict[tuple[int, int, int, Layers], SimulatedStep] = field(
        default_factory=dict[tuple[int, int, int, Layers], SimulatedStep]
    )

    @cached_property
    def _base(self) -> Layers:
        """One layer of each kind that the model has."""
        sizes = self.programs.sizes
        dense = sizes.layers - sizes.expert_layers
        return Layers(min(dense, 1), min(sizes.expert_layers, 1))

    @cached_property
    def _all(self) -> Layers:
        sizes = self.programs.sizes
        return Layers(sizes.layers - sizes.expert_layers, sizes.expert_layers)

    def simulated(
        self, batch: int, new: int, cached: int, layers: Layers, p: int = 1
    ) -> SimulatedStep:
        """
        Distributes and simulates a step of a model with `layers` in `p` pipeline
        stages. Each of `batch` sequences has `new` new tokens after `cached` tokens.
        Raises DistIRError if the step cannot be distributed.
        """
        key = (batch, new, cached, layers)
        if p == 1 and key in self._known:
            return self._known[key]
        self.simulations += 1
        module = self.programs.program(batch, new, cached, layers)
        replace_cluster(module, self.cluster.clone())
        if self.e > 1:
            _keep_sequences(module)
        shard = [f"{name}=t" for name in self.programs.caches]
        distribute(
            module,
            DistributionOptions(
                t=self.t,
                e=self.e,
                p=p,
                stages=("uniform",) if p > 1 else (),
                shard=tuple(shard) if cached and self.t > 1 else (),
            ),
        )
        simulation = simulate(module, profiles=tuple(self.profiles))
        parameters = caches = 0
        for entry in argument_layouts(module):
            size = entry.local_bytes * len(entry.names)
            if entry.role == "parameter":
                parameters += size
            elif len(entry.shape) > 2:
                caches += size
        found = SimulatedStep(
            simulation.step_time_s,
            parameters,
            caches,
            max(simulation.peak_memory_bytes),
        )
        if p == 1:
            self._known[key] = found
        return found

    def _costs(self, batch: int, new: int, cached: int) -> LayerCosts:
        """
        Returns the costs of a step, from programs with one and with two layers of each
        kind.
        """
        base = self._base
        first = self.simulated(batch, new, cached, base).seconds
        dense = mixed = 0.0
        if base.dense:
            more = Layers(base.dense + 1, base.mixed)
            dense = self.simulated(batch, new, cached, more).seconds - first
        if base.mixed:
            more = Layers(base.dense, base.mixed + 1)
            mixed = self.simulated(batch, new, cached, more).seconds - first
        return LayerCosts(first - base.dense * dense - base.mixed * mixed, dense, mixed)

    def table(self, p: int) -> StepTable:
        """
        Returns the step times of a pipeline of `p` stages, each of `t` x `e` devices.
        """
        every = _FEW if self.e > 1 else 1
        batches = [self.e * b for b in BATCHES[::every] if b < self.max_sequences]
        batches.append(self.e * self.max_sequences)
        prompts = [n for n in PROMPTS[::every] if n < self.batched_tokens]
        prompts.append(self.batched_tokens)
        longest = max(self.longest, 2 * SHORT)
        # Attention with a window takes no longer for contexts beyond it.
        window = self.programs.sizes.window
        knots = [window] if SHORT < window < longest else []
        contexts = [SHORT, *knots, longest]
        rows = list[list[StepTime]]()
        for batch in batches:
            cost = self._costs(batch, 1, SHORT)
            rows.append(
                [
                    self._staged(cost, batch, p, self._attention(batch, context))
                    for context in contexts
                ]
            )
        pair_s = self._pair_seconds(prompts[-1])
        read = list[tuple[int, StepTime]]()
        for new in prompts:
            cost = self._costs(self.e, new, 0)
            pairs = self.e * new * (new + 1) // 2
            read.append(
                (self.e * new, self._staged(cost, self.e * new, p, -pairs * pair_s))
            )
        share = self._share(p)
        return StepTable(
            batches, contexts, rows, read, StepTime(pair_s, pair_s * share)
        )

    def _attention(self, batch: int, context: int) -> float:
        """
        Returns the additional seconds, over all layers, of decoding with contexts of
        `context` tokens instead of short ones.
        """
        base, sizes = self._base, self.programs.sizes
        every = sizes.layers - sizes.window_layers
        parts = [(context, every), (min(context, sizes.window), sizes.window_layers)]
        found = 0.0
        for own, layers in parts:
            if layers and own > SHORT:
                short, long = (
                    self.simulated(batch, 1, cached, base).seconds
                    for cached in (SHORT, own)
                )
                found += (long - short) / sum(base) * layers
        return found

    def _pair_seconds(self, new: int) -> float:
        """
        Returns the seconds of attention, over all layers, for one pair of tokens of a
        prompt. The result is computed from the time of one prompt of `new` tokens and
        the time of several shorter prompts with the same total. The devices of an
        expert-parallel group share the pairs.
        """
        if new < 2 * _PARTS:
            return 0.0
        part = new // _PARTS
        base = self._base
        whole = self.simulated(self.e, part * _PARTS, 0, base).seconds
        parts = self.simulated(self.e * _PARTS, part, 0, base).seconds
        total = part * _PARTS
        pairs = self.e * (total * (total + 1) - _PARTS * part * (part + 1)) / 2
        seconds = max(whole - parts, 0.0) / sum(base) * self.programs.sizes.layers
        return seconds / pairs

    def _share(self, p: int) -> float:
        """Returns the largest share of the layers in one of `p` stages."""
        layers = self.programs.sizes.layers
        return ceil(layers / p) / layers

    def _staged(self, cost: LayerCosts, tokens: int, p: int, others: float) -> StepTime:
        """
        Returns the time of a step with `tokens` new tokens in `p` stages. `others` is a
        number of seconds, possibly negative, that is added to the layers' time in
        `cost`.
        """
        layers = max(cost.layers(self._all) + others, 0.0)
        whole = layers + cost.fixed
        if p == 1:
            return StepTime(whole, whole)
        latency = whole + self._sends(tokens, p)
        return StepTime(latency, layers * self._share(p) + cost.fixed)

    def _sends(self, tokens: int, p: int) -> float:
        """
        Returns the seconds of sending the hidden states of `tokens` tokens through all
        `p` stages. All devices of a stage send their parts at the same time.
        """
        sizes, group = self.programs.sizes, self.t * self.e
        size = tokens * sizes.d_model * sizes.width
        return sum(
            send_seconds(
                size / self.e, i * group, (i + 1) * group, self.hardware, group
            )
            for i in range(p - 1)
        )

    @cached_property
    def hardware(self) -> Hardware:
        """The hardware of the cluster, with its profiles."""
        return Hardware.of(self.cluster, load_profiles(self.profiles, self.cluster))

    def memory(self, p: int) -> ReplicaMemory:
        """Returns the memory of a device in a replica with `p` pipeline stages."""
        base, sizes = self._base, self.programs.sizes
        prompt = self.batched_tokens
        first = self.simulated(self.e, prompt, 0, base)
        parameters = float(first.parameters)
        for kind in range(2):
            if not base[kind]:
                continue
            more = Layers(*(n + (i == kind) for i, n in enumerate(base)))
            each = self.simulated(self.e, prompt, 0, more).parameters - first.parameters
            count = ceil(self._all[kind] * self._share(p))
            parameters += each * (count - base[kind])
        batch = self.e
        held = float(self.simulated(batch, 1, SHORT, base).caches)
        if sizes.latent is not None:
            # The latents are in the keys of the step already; no axis splits them.
            held = sizes.cached_bytes / sizes.layers * SHORT * sum(base)
        token = held / (SHORT * sum(base)) * ceil(sizes.layers / p)
        # The keys and values of the prompt are results of the step, and in the cache.
        activations = first.peak - first.parameters - prompt * held / SHORT
        kind = next(iter(self.hardware.distinct_kinds([0])))
        return ReplicaMemory(
            kind.memory, round(parameters), max(round(activations), 0), token, self.e
        )


def _keep_sequences(module: ModuleOp) -> None:
    """
    Requests that each device of expert parallelism computes products and attention for
    its own sequences only. Devices then exchange tokens only for experts, as in engines
    (data parallelism of attention). In a step with few tokens, sharing the matrices
    instead would send fewer bytes, but several messages in each layer make it slower.
    """
    for function in functions(module).values():
        for op in list(function.body.block.ops):
            if op.name not in PRODUCTS and op.name not in _LAYER_OPS:
                continue
            [result] = op.results
            layout = Layout(MESH).with_dim(0, (Shard("e"),), len(shape_of(result)))
            request = ConstrainOp(result, layout, ("e",))
            function.body.block.insert_op_after(request, op)
            result.replace_uses_with_if(
                request.result,
                lambda use, request=request: use.operation is not request,
            )


@dataclass(frozen=True)
class ReplicaMemory:
    """
    The memory of a replica's device, in bytes.

    - `device`: the total memory of the device;
    - `parameters`: the device's part of the parameters;
    - `activations`: the most memory that a step needs in addition to parameters and
      caches;
    - `token`: the device's part of one token in the cache.

    The sequences are divided among `parts` devices.
    """

    device: int
    parameters: int
    activations: int
    token: float
    parts: int

    def cache_tokens(self, share: float) -> int:
        """
        Returns the number of tokens that fit into the caches of a replica. Caches take
        the share `share` of the memory that parameters and steps leave.
        """
        left = share * (self.device - self.parameters - self.activations)
        return max(int(left / self.token), 0) * self.parts

    def static_share(self, tokens: int) -> float:
        """
        Returns the share of a device's memory for the parameters and for caches that
        hold `tokens` tokens of the replica.
        """
        return (self.parameters + self.token * tokens / self.parts) / self.device
