"""Published configurations of each system, read and written again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distir.errors import DistIRError
from distir.exports.systems.files import json_text, nested, toml_text, yaml_text
from distir.exports.systems.plan_file import grid_plan
from distir.exports.systems.registry import READABLE, SYSTEMS
from distir.exports.systems.system import Read

PUBLISHED = Path(__file__).parent / "published"

LLAMA: Mapping[str, Any] = dict(
    layers=32, d_model=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, seq=2048,
    positions=4096, mlp="swiglu", norm="rms", position="rotary", bias=False, tied=False,
)  # fmt: skip
"""The model of systems whose files have none."""


def rows(system: str) -> list[dict[str, Any]]:
    return json.loads((PUBLISHED / f"{system}.json").read_text("utf-8"))["rows"]


def script(row: Mapping[str, Any]) -> str:
    """A script with variables, arrays and continued lines that has a row's arguments."""
    arguments = [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in row["arguments"].items()
    ]
    half = len(arguments) // 2
    array = "\n".join(f"    {text}" for text in arguments[:half])
    text = " \\\n    ".join(arguments[half:])
    launch = (
        "--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank ${RANK:-0} "
        "--master_addr $MASTER_ADDR"
    )
    return (
        f"#!/bin/bash\nGPUS_PER_NODE={row['per_node']}\nNNODES={row['nodes']}\n"
        f"WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))\n"
        f'DISTRIBUTED_ARGS="{launch}"\n'
        f"MODEL_ARGS=(\n{array}  # a comment\n)\n"
        f'OTHERS="{text}"\n'
        f"{row['launcher']} $DISTRIBUTED_ARGS pretrain_gpt.py \\\n"
        f"    ${{MODEL_ARGS[@]}} $OTHERS 2>&1 | tee log_$WORLD_SIZE\n"
    )


def text_of(system: str, row: Mapping[str, Any]) -> str:
    if system == "megatron":
        return script(row)
    options = row["options"]
    if system == "torchtitan":
        return toml_text(options)
    return json_text(options) if system == "deepspeed" else yaml_text(options)


def read(system: str, row: Mapping[str, Any], text: str) -> Read:
    suffix = (*SYSTEMS[system].suffixes, ".sh")[0]
    document = SYSTEMS[system].parse(text, f"published{suffix}", row.get("given", {}))
    more: dict[str, Any] = {"devices": row.get("devices", 0)}
    if system in ("deepspeed", "accelerate"):
        more |= LLAMA
    if system == "accelerate":
        more["micro_batch"] = 2
    if system == "nemo":
        more["vocab"] = 32000
    return SYSTEMS[system].read(document, more)


def cases() -> Iterator[Any]:
    for system in READABLE:
        for row in rows(system):
            yield pytest.param(system, row, id=f"{system}: {row['name']}")


@pytest.mark.parametrize("system", READABLE)
def test_twelve_of_each(system: str):
    assert len(rows(system)) >= 12
    assert all(row["source"] for row in rows(system))


@pytest.mark.parametrize(("system", "row"), list(cases()))
def test_round_trip(system: str, row: Mapping[str, Any]):
    """What is written says the same settings, and keeps all other options."""
    own = SYSTEMS[system]
    first = read(system, row, text_of(system, row))
    values, _ = own.write(first.settings, first.kept, first.said)
    text = own.render(values, first.settings, first.launch)
    again = read(system, row, text)
    assert again.settings == first.settings
    kept = {n: v for n, v in first.kept.items() if v not in (None, [], {})}
    for name in own.derived(first.settings):
        kept.pop(name, None)
    assert {n: str(again.kept.get(n)) for n in kept} == {
        n: str(v) for n, v in kept.items()
    }
    assert not first.unknown
    grid_plan(first.settings)  # a plan


@pytest.mark.parametrize(
    "row", [pytest.param(r, id=r["name"]) for r in rows("megatron")]
)
def test_megatron_flags_return(row: Mapping[str, Any]):
    """Each flag of a published script comes back with its value, or is its default."""
    own = SYSTEMS["megatron"]
    first = read("megatron", row, script(row))
    values, _ = own.write(first.settings, first.kept, first.said)
    named = own.table.named()
    for name, value in row["arguments"].items():
        if name in values:
            given, back = str(value), str(values[name])
            assert given == back or float(given) == float(back), name
        else:
            default = named[name].default
            read_value = named[name].read(value, name)
            assert read_value in (default, getattr(first.settings, named[name].fact))


@pytest.mark.parametrize("system", READABLE)
def test_a_changed_degree_changes_the_options(system: str):
    row = next(r for r in rows(system) if r["name"] not in ("single_gpu",))
    first = read(system, row, text_of(system, row))
    s = first.settings
    wider = replace(s, t=2 * s.t, devices=2 * s.devices)
    own = SYSTEMS[system]
    before, _ = own.write(s, first.kept, first.said)
    after, _ = own.write(wider, first.kept, first.said)
    key = next((r.key for r in own.table.rows if r.fact == "t"), None)
    if key is None:
        key = "parallelism_config.parallelism_config_tp_size"
    assert after[key] == wider.t
    assert before.get(key, 1) == s.t
    nested({name: value for name, value in after.items()})


BLOCKS = [
    ("megatron", "mxfp8", {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"}),
    ("megatron", "nvfp4", {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}),
    ("torchtitan", "mxfp8", {"model.converters": ["quantize.linear.mx"]}),
]
"""Recipes of products in blocks, with options that say them in some system."""


@pytest.mark.parametrize(("system", "recipe", "options"), BLOCKS)
def test_products_in_blocks(system: str, recipe: str, options: Mapping[str, Any]):
    source = "torchtitan" if system == "torchtitan" else "megatron"
    row = next(r for r in rows(source) if r["name"] in ("LLaMA 3 8B in float8", "8B"))
    first = read(source, row, text_of(source, row))
    settings = replace(first.settings, float8=recipe)
    written, _ = SYSTEMS[system].write(settings, {}, {})
    assert options.items() <= written.items()
    name = "arguments" if system == "megatron" else "options"
    own = {n: v for n, v in row[name].items() if not n.startswith("fp8")}
    again = {**row, name: own | dict(options)}
    assert read(system, again, text_of(system, again)).settings.float8 == recipe
    if recipe == "nvfp4":
        text = SYSTEMS["megatron-bridge"].render(written, settings, {})
        assert "cfg.model.fp4 = 'e2m1'\n    cfg.model.fp4_recipe = 'nvfp4'" in text


def test_torchtitan_has_no_products_in_4_bits():
    row = rows("torchtitan")[0]
    settings = read("torchtitan", row, text_of("torchtitan", row)).settings
    with pytest.raises(DistIRError, match="4-bit floats"):
        SYSTEMS["torchtitan"].write(replace(settings, float8="nvfp4"), {}, {})


def folded(**arguments: Any) -> Read:
    """A published run with experts on 16 devices, with its own degrees."""
    row = next(r for r in rows("megatron") if "num-experts" in r["arguments"])
    own = {
        "tensor-model-parallel-size": 2, "pipeline-model-parallel-size": 1,
        "expert-model-parallel-size": 8, "global-batch-size": 128, **arguments,
    }  # fmt: skip
    degrees = {name.replace("_", "-"): value for name, value in own.items()}
    changed = {
        **row, "nodes": 2, "per_node": 8, "arguments": {**row["arguments"], **degrees}
    }  # fmt: skip
    return read("megatron", changed, script(changed))


def test_experts_over_the_devices_of_attention():
    """Without tensor parallelism of their own they are over both kinds of devices."""
    first = folded(expert_tensor_parallel_size=1)
    s = first.settings
    assert (s.t, s.e, s.d, s.expert_axes) == (2, 4, 2, "et")
    assert grid_plan(s).options().expert_degree == 8
    own = SYSTEMS["megatron"]
    values, _ = own.write(s, first.kept, {})
    assert values["expert-model-parallel-size"] == 8
    assert values["expert-tensor-parallel-size"] == 1
    plain = folded().settings
    assert (plain.e, plain.d, plain.expert_axes) == (8, 1, "e")
    with pytest.raises(DistIRError, match=r"4 .* cannot be predicted"):
        folded(expert_tensor_parallel_size=4)
    with pytest.raises(DistIRError, match="deepspeed has no option that deals"):
        SYSTEMS["deepspeed"].write(replace(s, e=1), {}, {})
