"""
Training runs that others published with their configuration: IBM's fms-fsdp (FSDP and HSDP),
NVIDIA's NeMo and Megatron-Bridge in FP8, Hugging Face's nanotron. Each file has its sources.

No profile was fitted to any of them. A row is distributed for the profile that it is predicted
with. Scripts in eager PyTorch have the profiles of scripts by hand, as their losses make copies
of all logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType, i64
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.device import ClusterOp, LinkOp
from distir.dialects.onnx import operator
from distir.dialects.train_ops.attention import AttentionOp
from distir.frontends.models.basic import build_gpt
from distir.frontends.models.llama import build_llama
from distir.hardware import load_cluster
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass
from distir.passes.inline_calls import InlineCallsPass
from distir.passes.outline_repeats import OutlineRepeatsPass
from measured.rows import Row

BUILDERS: dict[str, Callable[..., ModuleOp]] = {"gpt": build_gpt, "llama": build_llama}
SOURCES = {"fms": "IBM's fms-fsdp", "nanotron": "nanotron", "nemo": "NVIDIA's NeMo"}
"""The publishers of files, by the first word of a file's name."""

IBM = {"ibm-a100.mlir": ("dgx-a100", 50e9), "ibm-h100.mlir": ("dgx-h100", 100e9)}
"""IBM's clusters: the built-in node, and the bytes/s that it sends and receives in all."""


def load(data: dict[str, Any]) -> list[Row]:
    """Returns the rows of a file of `published`."""
    rows: list[Row] = []
    source = SOURCES[data["file"].split("_")[0]]
    for record in data["records"]:
        row = Published(record)
        name, seconds = record["name"], record["measured_s"]
        rows.append(Row(name, seconds, row.ideal, row, row.hardware, source))
    return rows


def nanotron_stages(sizes: dict[str, Any], p: int) -> tuple[str, ...]:
    """
    Returns the scopes with which nanotron's stages begin, without the first. nanotron
    (`build_and_set_rank`) deals out blocks in order: the embedding, the layers, the last
    norm, the output matrix and the loss. A stage takes blocks until the parameters of all stages up
    to it exceed its share; embedding, norm and loss count nothing.
    """
    width, layers = sizes["d_model"], sizes["layers"]
    layer = 4 * width**2 + 3 * sizes["ffn"] * width
    blocks = [("model.embed_tokens", 0)]
    blocks += [(f"model.layers.{i}", layer) for i in range(layers)]
    blocks += [("model.norm", 0), ("lm_head", sizes["vocab"] * width), ("loss", 0)]
    whole, done = sum(cost for _, cost in blocks), 0
    starts: list[str] = []
    for (_, cost), (following, _) in pairwise(blocks):
        done += cost
        if done > whole * (len(starts) + 1) / p:
            starts.append(following)
    return tuple(starts)


def copy_queries(module: ModuleOp) -> None:
    """
    Lets queries, keys and values of a training step lie in memory as nanotron's attention
    keeps them for its backward (`CausalSelfAttention`, with as many keys as queries):
    queries are a view of a tensor with all three, keys and values of a copy of both.
    """
    for op in list(module.walk()):
        if isinstance(op, AttentionOp):
            q, k, v = op.operands[:3]
            readers = {
                value: [use.operation for use in value.uses] for value in (q, k, v)
            }
            new = dict(zip((k, v), _joined(op, [k, v]), strict=True))
            new[q] = _joined(op, [q, k, v])[0]
            for value, users in readers.items():
                for user in users:
                    user.operands = [
                        new[value] if operand is value else operand
                        for operand in user.operands
                    ]


def _joined(before: Operation, values: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """Adds a copy of tensors [shape] to one [n, shape] in front of an op; returns its parts."""
    of = values[0].type
    assert isinstance(of, TensorType)
    shape, element = of.get_shape(), of.get_element_type()

    def add(
        name: str, operands: Sequence[SSAValue], parts: Sequence[int], **options: Any
    ) -> Sequence[SSAValue]:
        types = [TensorType(element, (n, *shape) if n else shape) for n in parts]
        op = operator(name).build_op(operands, types, options, None)
        Rewriter.insert_op(op, InsertPoint.before(before))
        return op.results

    axes = operator("Constant").build_op(
        [], [TensorType(i64, (1,))], {"value": np.zeros(1, np.int64)}, None
    )
    Rewriter.insert_op(axes, InsertPoint.before(before))
    rows = [add("Unsqueeze", [v, axes.results[0]], [1])[0] for v in values]
    whole = add("Concat", rows, [len(values)], axis=0)
    parts = add("Split", whole, [1] * len(values), axis=0, num_outputs=len(values))
    return [add("Squeeze", [part, axes.results[0]], [0])[0] for part in parts]


def _rows_of_projections(kind: str, layers: int) -> tuple[str, ...]:
    """
    Returns the splits of Megatron's `RowParallelLinear` for the projection behind
    attention, where a search for layouts also finds others of nearly the same cost.
    """
    path, dim = {
        "gpt": ("transformer.h.{}.attn.c_proj.weight", 0),
        "llama": ("model.layers.{}.self_attn.o_proj.weight", 1),
    }[kind]
    return tuple(f"{path.format(layer)}:{dim}=t" for layer in range(layers))


@dataclass(frozen=True)
class Published:
    """A record of a file; called, it simulates its step."""

    record: dict[str, Any]

    def __call__(self) -> Simulation:
        return self.simulation()

    @property
    def hardware(self) -> str:
        """The kind of device."""
        return "A100" if "a100" in self.record["cluster"] else "H100"

    @property
    def is_nanotron(self) -> bool:
        """Whether nanotron made the run."""
        return SOURCES["nanotron"] in self.record["where"]

    @property
    def profile(self) -> str:
        """The profile of the run's software."""
        if self.is_nanotron:
            return f"{self.hardware}-nanotron"
        matched = self.record["matched"]
        if matched == "auto":
            # fms writes out norms and rotary positions; nanotron has kernels for them.
            is_written_out = self.record["name"].endswith("eager")
            return f"{self.hardware}-{'eager' if is_written_out else 'pytorch'}"
        return matched

    @property
    def ideal(self) -> float:
        """The seconds of the model's operations at the peak of all devices."""
        on, r = self.cluster(), self.record
        peak = on.kinds[0].peak_flops.data["bf16"]
        return r["model_flops"] / (r["devices"] * peak.value.data)  # pyright: ignore

    def cluster(self) -> ClusterOp:
        """Returns the devices of the run."""
        name, devices = self.record["cluster"], self.record["devices"]
        if name not in IBM:
            return load_cluster(name, devices)
        node, rate = IBM[name]
        found = load_cluster(node, devices)
        inner, outer = found.links
        # A node's devices share its adapters, of 12.5e9 bytes/s each.
        network = LinkOp(
            outer.sym_name.data, devices, bandwidth=12.5e9,
            latency=outer.latency.value.data, block_bandwidth=rate,
        )  # fmt: skip
        kinds = [kind.clone() for kind in found.kinds]
        return ClusterOp("ibm", kinds, [inner.clone(), network])

    def program(self) -> ModuleOp:
        """Returns the distributed step."""
        kind, given = self.record["model"]
        sizes = dict(given)
        float8 = sizes.pop("float8", "")
        gradients = sizes.pop("gradient_dtype", "parameter")
        if self.record["where"].startswith("Megatron-Bridge"):
            # Its performance scripts set `grad_reduce_in_fp32 = False` for Llama 3.
            gradients = "parameter"
        module = BUILDERS[kind](**sizes)
        if float8:
            InlineCallsPass().apply(Context(), module)
            Float8Pass(scaling=float8).apply(Context(), module)
            OutlineRepeatsPass().apply(Context(), module)
        DifferentiatePass(optimizer="adamw", gradient_dtype=gradients).apply(
            Context(), module
        )
        if self.is_nanotron:
            copy_queries(module)
        if float8:
            ExpandFloat8Pass().apply(Context(), module)
        block = module.body.block
        assert block.first_op is not None
        block.insert_op_before(self.cluster(), block.first_op)
        options = dict(self.record["par"])
        if self.record["matched"].endswith("-megatron") and options.get("t", 1) > 1:
            options["shard"] = _rows_of_projections(kind, sizes["layers"])
        stages = tuple(options.pop("stages", ()))
        if self.is_nanotron:
            options["keep_gathered"] = options.get("sequence_parallel", False)
        if self.is_nanotron and options.get("p", 1) > 1:
            stages = nanotron_stages(sizes, options["p"])
        elif options.get("p", 1) > 1 and not stages:
            # Layers are dealt out evenly where they can be, as these systems do.
            count = options["p"] * options.get("chunks", 1)
            stages = ("uniform",) if not sizes["layers"] % count else ()
        DistributePass(**options, stages=stages, profile=(self.profile,)).apply(
            Context(), module
        )
        return module

    def simulation(self) -> Simulation:
        """Returns the simulation of the step, with the profile that fits the software."""
        return simulate(self.program(), profiles=(self.profile,))
