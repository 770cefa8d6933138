"""Plans of services as flags of engines for inference."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from distir.errors import DistIRError
from distir.exports.engines import ENGINES, FORMAT, engine_script, read_settings
from distir.planning.serving import planned
from distir.tools.cli import main


def pool(**changes: Any) -> dict[str, Any]:
    own = {"t": 4, "p": 2, "e": 1, "replicas": 3, "max_sequences": 256}
    shares = {"static_share": 0.8, "step_share": 0.05}
    return own | {"batched_tokens": 2048} | shares | changes


def written(
    tmp_path: Path, experts: int = 0, formats: Any = None, **pools: Any
) -> Path:
    path = tmp_path / "plan.json"
    data = {
        "format": FORMAT,
        "model": {"experts": experts, "formats": formats or {}},
        "workload": {"longest_request": 2300, "prefix_hits": 0.0},
        "memory_share": 0.9,
        "best": {"plan": pools} if pools else None,
    }
    path.write_text(json.dumps(data))
    return path


def flags(script: str) -> list[dict[str, str]]:
    """The flags of each command of a script; those without a value have ''."""
    found: list[dict[str, str]] = []
    text = script.replace("\\\n", " ")
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        words = shlex.split(line)
        own: dict[str, str] = {}
        for word, after in zip(words, [*words[1:], "--"], strict=True):
            if word.startswith("--"):
                own[word] = "" if after.startswith("--") else after
        found.append(own)
    return found


def test_both_sides_agree_on_the_format() -> None:
    assert planned.FORMAT == FORMAT


def test_degrees_and_sizes_are_flags_of_each_engine(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, replica=pool()))
    [vllm] = flags(engine_script("vllm", settings))
    assert vllm["--tensor-parallel-size"] == "4"
    assert vllm["--pipeline-parallel-size"] == "2"
    assert vllm["--max-num-seqs"] == "256"
    assert vllm["--gpu-memory-utilization"] == "0.85"
    assert "--enable-expert-parallel" not in vllm
    [sglang] = flags(engine_script("sglang", settings))
    assert (sglang["--tp-size"], sglang["--pp-size"]) == ("4", "2")
    assert sglang["--mem-fraction-static"] == "0.8"
    assert sglang["--disable-radix-cache"] == ""
    [trt] = flags(engine_script("tensorrt-llm", settings))
    assert (trt["--tp_size"], trt["--max_num_tokens"]) == ("4", "2048")
    assert trt["--kv_cache_free_gpu_memory_fraction"] == "0.9"


def test_caches_of_8_bits_are_flags_where_a_flag_can_say_so(tmp_path: Path) -> None:
    formats = {"weights": "int4", "cache": "fp8", "group": 128}
    settings = read_settings(written(tmp_path, formats=formats, replica=pool()))
    scripts = {name: engine_script(name, settings) for name in ENGINES}
    [vllm], [sglang], _ = map(flags, scripts.values())
    assert vllm["--kv-cache-dtype"] == "fp8" and "--quantization" not in vllm
    assert sglang["--kv-cache-dtype"] == "fp8_e4m3"
    for name, script in scripts.items():
        assert "weights in int4: serve a checkpoint that says so" in script
        assert ("caches in fp8" in script) == (name == "tensorrt-llm")


def test_experts_and_the_devices_that_divide_sequences(tmp_path: Path) -> None:
    own = pool(p=1, e=8, max_sequences=2048, batched_tokens=8192)
    settings = read_settings(written(tmp_path, experts=64, replica=own))
    [vllm] = flags(engine_script("vllm", settings))
    assert vllm["--data-parallel-size"] == "8"
    assert vllm["--enable-expert-parallel"] == ""
    assert (vllm["--max-num-seqs"], vllm["--max-num-batched-tokens"]) == ("256", "1024")
    [sglang] = flags(engine_script("sglang", settings))
    assert (sglang["--tp-size"], sglang["--dp-size"]) == ("32", "8")
    assert (sglang["--ep-size"], sglang["--enable-dp-attention"]) == ("32", "")


def test_a_disaggregated_plan_is_two_commands(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, prefill=pool(), decode=pool(t=8)))
    for name in ENGINES:
        assert len(flags(engine_script(name, settings))) == 2
    first, second = flags(engine_script("vllm", settings))
    assert json.loads(first["--kv-transfer-config"])["kv_role"] == "kv_producer"
    assert json.loads(second["--kv-transfer-config"])["kv_role"] == "kv_consumer"
    sides = flags(engine_script("sglang", settings))
    assert [s["--disaggregation-mode"] for s in sides] == ["prefill", "decode"]


def test_the_command_writes_a_script(tmp_path: Path) -> None:
    output = tmp_path / "serve.sh"
    source = str(written(tmp_path, replica=pool()))
    assert main(["export", source, "--to", "vllm", "-o", str(output)]) == 0
    assert "vllm serve $MODEL" in output.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "is no plan of a service"), ("[", "cannot read"), ("[]", "is no plan")],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DistIRError, match=message):
        read_settings(path)


def test_a_plan_that_keeps_no_limit_has_no_flags(tmp_path: Path) -> None:
    with pytest.raises(DistIRError, match="no plan that keeps its limits"):
        read_settings(written(tmp_path))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        ("best", None),
        ("memory_share", None),
        ("workload longest_request", None),
        ("best plan", {}),
        ("best plan", []),
        ("best plan replica t", None),
        ("best plan replica t", "four"),
        ("best plan replica e", 0),
    ],
)
def test_a_damaged_plan_is_named(tmp_path: Path, at: str, value: Any) -> None:
    path = written(tmp_path, replica=pool())
    data: dict[str, Any] = json.loads(path.read_text())
    *folders, key = at.split()
    place = data
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[key]
    else:
        place[key] = value
    path.write_text(json.dumps(data))
    with pytest.raises(DistIRError, match=r"plan\.json is damaged"):
        read_settings(path)
