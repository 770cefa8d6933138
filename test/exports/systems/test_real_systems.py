"""
What is written, read by the systems themselves, where they are installed
(`make test-systems`).
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from distir.exports.systems.bridge import MegatronBridge
from distir.exports.systems.deepspeed import DeepSpeed
from distir.exports.systems.files import read_options
from distir.exports.systems.megatron import Megatron
from distir.exports.systems.nanotron import Nanotron
from distir.exports.systems.settings import RunSettings
from distir.exports.systems.system import System
from distir.exports.systems.torchtitan import FLAVORS, Torchtitan

LLAMA = RunSettings(
    **FLAVORS["llama3", "8B"],
    seq=8192, dtype="bf16", gradients_f32=True, batch=64, micro_batch=1, t=2, zero=3,
    devices=16, per_node=8, sequence_parallel=True, overlap="dp,params", checkpoint="whole",
).completed()  # fmt: skip
"""LLaMA 3 8B with tensor parallelism and fully sharded data parallelism."""


def text(system: System, settings: RunSettings, **launch: Any) -> str:
    values, _ = system.write(settings, {}, {})
    return system.render(values, settings, launch)


def test_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runtime = pytest.importorskip("deepspeed.runtime.config")
    settings = replace(LLAMA, t=1, sequence_parallel=False, offload_states=True)
    path = tmp_path / "ds.json"
    path.write_text(text(DeepSpeed(), settings))
    monkeypatch.setattr(runtime.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(runtime.dist, "get_world_size", lambda: 16)
    found = runtime.DeepSpeedConfig(str(path))
    assert found.train_batch_size == 64
    assert found.train_micro_batch_size_per_gpu == 1
    assert found.gradient_accumulation_steps == 4
    assert found.zero_optimization_stage == 3
    assert found.zero_config.overlap_comm is True
    assert found.zero_config.offload_optimizer.device == "cpu"
    assert found.bfloat16_config.enabled


def test_torchtitan_sections():
    """Each option of a TOML file is a field of the section's dataclass."""
    configs = pytest.importorskip("torchtitan.config.configs")
    sections = {
        "training": configs.TrainingConfig,
        "parallelism": configs.ParallelismConfig,
        "compile": configs.CompileConfig,
    }
    rules = [name for rule in Torchtitan.table.rules for name in rule.options]
    written, _ = Torchtitan().write(replace(LLAMA, p=2, t=1, d_model=4096), {}, {})
    names = {*written, *(row.key for row in Torchtitan.table.rows)}
    older = {  # options of versions before 0.3 that are read, and not written there
        "parallelism.context_parallel_rotate_method",
        "parallelism.enable_async_tensor_parallel",
    }
    for name in names - older:
        section, _, key = name.partition(".")
        if section in sections:
            assert key in {field.name for field in fields(sections[section])}, name
    found = configs.ParallelismConfig(
        **{
            name.partition(".")[2]: value
            for name, value in written.items()
            if name.startswith("parallelism.") and name not in older
        }
    )
    assert found.pipeline_parallel_degree == 2
    assert any(name.startswith("training.") for name in rules)


def test_torchtitan_function(tmp_path: Path):
    """A function of a config_registry runs, and says the plan."""
    pytest.importorskip("torchtitan.trainer")
    path = tmp_path / "plan.py"
    path.write_text(text(Torchtitan(), LLAMA, python=True))
    scope: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    found = scope["llama3_plan"]()
    assert found.parallelism.tensor_parallel_degree == 2
    assert found.parallelism.data_parallel_shard_degree == 8
    assert found.training.seq_len == 8192 and found.training.global_batch_size == 64
    assert type(found.activation_checkpoint).__qualname__ == "FullAC.Config"


def test_megatron_core():
    """Each option of the model that Megatron Bridge gets is a field of Megatron-Core."""
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    ddp = pytest.importorskip(
        "megatron.core.distributed.distributed_data_parallel_config"
    )
    known = {field.name for field in fields(config.TransformerConfig)}
    known_ddp = {field.name for field in fields(ddp.DistributedDataParallelConfig)}
    provider = {  # of GPTModelProvider, in Megatron Bridge
        *("seq_length", "vocab_size", "share_embeddings_and_output_weights"),
        *("position_embedding_type", "rotary_base"),
    }
    written = text(MegatronBridge(), replace(LLAMA, zero=1, p=2, chunks=2, devices=32,
                                             schedule="interleaved-1f1b", batch=128))  # fmt: skip
    for line in written.splitlines():
        name = line.strip().partition(" = ")[0]
        if name.startswith("cfg.model."):
            key = name.removeprefix("cfg.model.")
            assert key in known | provider, name
        elif name.startswith("cfg.ddp."):
            assert name.removeprefix("cfg.ddp.") in known_ddp, name
    names = {row.key.replace("-", "_") for row in Megatron.table.rows}
    assert {"tensor_model_parallel_size", "recompute_granularity"} <= known
    assert {
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "kv_channels",
    } <= names & known


def test_megatron_core_defaults():
    """Defaults in the table are those of Megatron-Core."""
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    defaults = {f.name: f.default for f in fields(config.TransformerConfig)}
    for row in Megatron.table.rows:
        name = row.key.replace("-", "_")
        if name in defaults and not row.values and row.default not in (None, 0):
            assert defaults[name] == row.default, row.key


def test_nanotron(tmp_path: Path):
    """nanotron's own loader, where the version that is installed can be imported."""
    try:
        from nanotron.config import get_config_from_file  # pyright: ignore
    except ImportError as error:
        pytest.skip(f"nanotron cannot be imported: {error}")
    path = tmp_path / "plan.yaml"
    path.write_text(text(Nanotron(), replace(LLAMA, zero=1)))
    found = get_config_from_file(str(path), skip_unused_config_keys=True)
    assert found.parallelism.dp == 8 and found.parallelism.tp == 2
    assert found.tokens.batch_accumulation_per_replica == 8


def test_accelerate(tmp_path: Path):
    config = pytest.importorskip("accelerate.commands.config.config_args")
    from distir.exports.systems.accelerate import Accelerate

    path = tmp_path / "fsdp.yaml"
    path.write_text(text(Accelerate(), LLAMA))
    found = config.load_config_from_file(str(path))
    assert found.num_processes == 16 and found.num_machines == 2
    assert str(found.mixed_precision) == "bf16"
    assert found.fsdp_config["fsdp_reshard_after_forward"] is True
    assert found.parallelism_config["parallelism_config_tp_size"] == 2
    options = read_options(path.read_text(), str(path), "yaml").values
    json.dumps(options)
