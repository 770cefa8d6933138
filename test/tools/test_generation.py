"""From a configuration to generated tokens, by the commands that a user types."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file
from support.command_line import distir, failure, succeed
from support.generation import PROMPTS, generated_by_transformers, tiny_config

from distir.errors import DistIRError
from distir.launch.packages import Spawner, run_script
from distir.launch.timing_rank import load_package

IMPORT = ("--task", "causal-lm", "--serve", "--batch", "3", "--cache", "24")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, distributed over two devices, and its package."""
    path = tmp_path_factory.mktemp("llama")
    config = path / "config.json"
    config.write_text(tiny_config("llama").to_json_string())
    succeed(
        *("import", "--transformers", config, *IMPORT, "--prompt", "10"),
        *("-o", path / "llama.mlir"),
    )
    succeed(
        *("distribute", path / "llama.mlir", "--cluster", "dgx-a100", "-t", "2"),
        *("-o", path / "dist.mlir"),
    )
    succeed("lower", path / "dist.mlir", "-o", path / "package")
    return path


def generate(folder: Path, prompts: Any, new: int, spawner: Spawner) -> Any:
    """Runs the package on two processes, and returns the tokens that they write."""
    file, outputs = folder / "prompts.json", folder / "tokens.json"
    file.write_text(json.dumps(prompts))
    arguments = ["--weights", str(folder / "llama.safetensors"), "--prompts", str(file)]
    arguments += ["--outputs", str(outputs), "--max-new-tokens", str(new)]
    run_script(
        *(folder / "package" / "main.py", arguments, 2, folder),
        backend="gloo",
        timeout_s=100,
        progress=None,
        spawner=spawner,
    )
    return json.loads(outputs.read_text())


def test_generated_tokens(folder: Path, spawner: Spawner) -> None:
    """Four prompts are two batches of three, the second with places left."""
    found = generate(folder, PROMPTS, 12, spawner)
    model: Any = transformers.AutoModelForCausalLM.from_config(tiny_config("llama"))
    model.load_state_dict(load_file(folder / "llama.safetensors"), strict=False)
    wanted = generated_by_transformers(model.eval(), PROMPTS, 12)
    assert found == wanted


@pytest.mark.parametrize(
    ("prompts", "new", "message"),
    [
        ([[1] * 11], 2, "prompt 0 has 11 tokens, but prefill takes 10 at most"),
        (
            [[1] * 10],
            16,
            "takes 10 tokens, and with 16 new ones they are more than the 24 of the",
        ),
        ([[1], []], 2, "prompt 1 is [], but a prompt is a list of token ids"),
        ([], 2, "prompts are a list of lists of token ids"),
        (
            [[1], [2, 96]],
            2,
            "prompt 1 has the token 96, but the model's tokens are 0 to 95",
        ),
        ([[1]], 0, "0 new tokens are asked for; give at least 1"),
    ],
)
def test_prompts_that_are_refused(
    folder: Path, prompts: Any, new: int, message: str
) -> None:
    decode, runtime, _ = load_package(str(folder / "package"), "refusing")
    prefill, generation = (
        importlib.import_module(f"refusing.{name}")
        for name in ("prefill_program", "generation")
    )
    with pytest.raises(runtime.ProgramError, match=re.escape(message)):
        generation.check(prompts, new, generation.EntryPrograms(prefill, decode))


@pytest.mark.slow
def test_prompts_that_do_not_fit(folder: Path, spawner: Spawner) -> None:
    message = "prompt 0 has 11 tokens, but prefill takes 10 at most"
    with pytest.raises(DistIRError, match=message):
        generate(folder, [[1] * 11], 2, spawner)


def test_check_proves_both_entries(folder: Path) -> None:
    table = succeed("check", folder / "llama.mlir", folder / "dist.mlir").output
    rows = re.findall(r"^(\S.*?)  .* (equal|DIFFERS)$", table, re.M)
    assert ("prefill: logits", "equal") in rows
    assert ("decode: cache.*.value (2)", "equal") in rows
    assert rows[-1] == ("decode after prefill", "equal")
    assert {verdict for _, verdict in rows} == {"equal"}


def test_check_finds_a_wrong_decode(folder: Path) -> None:
    """A decode that sees no older token than its own agrees with itself alone."""
    text = (folder / "llama.mlir").read_text()
    start = text.index("func.func @decode")
    head = re.sub(r"onnx\.GreaterOrEqual\(", "onnx.Equal(", text[start:])
    assert head != text[start:]
    wrong = folder / "wrong.mlir"
    wrong.write_text(text[:start] + head)
    done = distir("check", wrong, wrong)
    assert done.code == 1
    assert re.findall(r"^(\S.*?)  .*DIFFERS$", done.output, re.M) == [
        "decode after prefill"
    ]


def test_one_entry_is_simulated(folder: Path) -> None:
    program = folder / "dist.mlir"
    decode = succeed("simulate", program, "--entry", "decode", "--memory").output
    # 2 layers, keys and values of 3 x 2 x 24 x 8 numbers, half of them on a device.
    assert f"{2 * 2 * 3 * 1 * 24 * 8 * 4 / 1e3:.3g} kB" in decode
    assert "--entry decode" in failure("simulate", program)
    assert "did you mean 'decode'" in failure("simulate", program, "--entry", "decod")


def test_a_plan_for_decode_distributes_both_entries(folder: Path) -> None:
    model, plan = folder / "llama.mlir", folder / "plan.json"
    on = ("--cluster", "dgx-a100", "--devices", "2")
    best = folder / "best.mlir"
    succeed(
        *("search", model, "--entry", "decode", *on, "--degrees", "1,2,1"),
        *("--save-plan", plan, "-o", best),
    )
    followed = folder / "followed.mlir"
    succeed("distribute", model, "--plan", plan, "-o", followed)
    text = followed.read_text()
    assert text.count("dist.entry") == 2
    start = "func.func @prefill"
    assert (
        text[text.index(start) :]
        == best.read_text().partition(start)[1] + (best.read_text().partition(start)[2])
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--task", "causal-lm", "--serve", "--batch", "2"), "--serve needs --cache"),
        ((*IMPORT, "--prompt", "25"), "--prompt 25 is longer than the 24 tokens"),
        ((*IMPORT, "--seq", "8"), "--seq does not go with --serve"),
        ((*IMPORT, "--training-mode"), "--training-mode does not go with --serve"),
        (
            (*IMPORT, "--training", "--loss", "cross_entropy"),
            "--training does not go with --serve",
        ),
        (
            ("--task", "causal-lm", "--batch", "2", "--seq", "4", "--cache", "8"),
            "--cache is of use with --serve only",
        ),
        (
            ("--task", "causal-lm", "--serve", "--batch", "2", "--cache", "65"),
            "--cache 65 is longer than the 64 positions",
        ),
    ],
)
def test_options_that_do_not_go_together(
    folder: Path, options: tuple[str, ...], expected: str
) -> None:
    config = folder / "config.json"
    output = ("-o", folder / "other.mlir")
    assert expected in failure("import", "--transformers", config, *options, *output)


def test_meta_has_no_weights(folder: Path) -> None:
    output = folder / "meta.mlir"
    done = succeed(
        *("import", "--transformers", folder / "config.json", *IMPORT, "--meta"),
        *("--dtype", "bf16", "-o", output),
    )
    assert "have no values" in done.errors
    text = output.read_text()
    assert 'tensor<3x2x24x8xbf16> {dist.role = "cache"' in text
    assert list(load_file(output.with_suffix(".safetensors"))) == [
        "model.rotary_emb.inv_freq"
    ]
