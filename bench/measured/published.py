"""
Training runs that others published with their configuration: IBM's fms-fsdp (FSDP and HSDP),
NVIDIA's NeMo and Megatron-Bridge in FP8, Hugging Face's nanotron. Each file has its sources.

No profile was fitted to any of them. A row is distributed for the profile that it is predicted
with. Scripts in eager PyTorch have the profiles of scripts by hand, as their losses make copies
of all logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, LinkOp
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
    def profile(self) -> str:
        """The profile of the run's software."""
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
        if float8:
            ExpandFloat8Pass().apply(Context(), module)
        block = module.body.block
        assert block.first_op is not None
        block.insert_op_before(self.cluster(), block.first_op)
        options = dict(self.record["par"])
        if self.record["matched"].endswith("-megatron") and options.get("t", 1) > 1:
            options["shard"] = _rows_of_projections(kind, sizes["layers"])
        stages = tuple(options.pop("stages", ()))
        if options.get("p", 1) > 1 and not stages:
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
