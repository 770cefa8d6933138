"""`distir import` of functions in Python and of configurations of Hugging Face's models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import failure, succeed
from support.thoroughness import IS_THOROUGH, sampled
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

import distir
from distir.program import argument_names, entry_function
from distir.program.weights import load_weights
from distir.tools.files import read_program

CODE = """
import torch
from beside import WIDTH

def make():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.Tanh())
    return module, (torch.ones(2, WIDTH),)

def by_name():
    module, (x,) = make()
    return module, (), {"input": x}

def with_a_norm():
    module, args = make()
    return torch.nn.Sequential(*module, torch.nn.LayerNorm(4)), args

def with_dropout():
    module, args = make()
    return torch.nn.Sequential(module[0], torch.nn.Dropout(0.5), module[1]), args

def on_meta():
    with torch.device("meta"):
        return make()

def module_alone():
    return make()[0]

def no_example():
    return make()[0], 3

def broken():
    return missing

def leaving():
    raise SystemExit(0)

def unusable():
    return torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(3, 4)), (torch.ones(2, 5),)

class Branch(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x

def with_a_branch():
    return Branch(4, 4), (torch.ones(2, 4),)

class Counter(torch.nn.Linear):
    def forward(self, x):
        self.calls.add_(1)
        return super().forward(x) * self.calls

def with_a_counter():
    module = Counter(4, 4)
    module.register_buffer("calls", torch.zeros(()))
    return module, (torch.ones(2, 4),)

SIZE = 3
"""

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
VIT = {
    "model_type": "vit",
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 16,
}
T5 = {
    "model_type": "t5",
    "num_layers": 1,
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 8,
    "num_heads": 4,
    "vocab_size": 64,
}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "beside.py").write_text("WIDTH = 8\n")
    path = folder / "model.py"
    path.write_text(CODE)
    return path


@pytest.mark.parametrize("function", ["make", "by_name"])
def test_a_function(code: Path, tmp_path: Path, function: str) -> None:
    program = tmp_path / "m.mlir"
    succeed("import", f"{code}:{function}", "-o", program)
    weights = load_weights(tmp_path / "m.safetensors")
    torch.manual_seed(0)
    expected = torch.nn.Linear(8, 4).weight.detach().numpy()
    np.testing.assert_array_equal(weights["0.weight"], expected)
    assert "Tanh" in program.read_text()
    read_program(program)


def test_a_function_on_the_meta_device(code: Path, tmp_path: Path) -> None:
    program = tmp_path / "m.mlir"
    told = succeed("import", f"{code}:on_meta", "-o", program)
    assert (
        "2 parameters and constants have no values, such as '0.weight'" in told.errors
    )
    assert not program.with_suffix(".safetensors").exists()


def test_a_training_step_of_a_function(code: Path, tmp_path: Path) -> None:
    program = tmp_path / "m.mlir"
    options = ("--training", "--loss", "mse", "--frozen", "*.bias")
    told = succeed("import", f"{code}:make", *options, "-o", program)
    assert "trained: 1 parameters of 32 elements; not trained: 1 frozen" in told.output


def test_labels_that_do_not_count(code: Path, tmp_path: Path) -> None:
    """They are those of PyTorch's cross-entropy, unless others are named."""
    program = tmp_path / "m.mlir"
    options = ("--training", "--loss", "cross_entropy")
    succeed("import", f"{code}:make", *options, "-o", program)
    assert "ignore_index = -100" in program.read_text()
    succeed("import", f"{code}:make", *options, "--ignore-index", "3", "-o", program)
    text = program.read_text()
    assert "ignore_index = 3" in text and "-100" not in text


@pytest.mark.parametrize("dtype", sampled(["bf16", "f16"], 2))
def test_parameters_of_16_bits(code: Path, tmp_path: Path, dtype: str) -> None:
    """The optimizer has an f32 copy of each, and f16 a scale of the loss."""
    program = tmp_path / "m.mlir"
    options = ("--dtype", dtype, "--training", "--loss", "mse")
    succeed("import", f"{code}:with_a_norm", *options, "-o", program)
    types = _types(program)
    weights = load_weights(tmp_path / "m.safetensors")
    assert sorted(weights) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    for name, value in weights.items():
        assert types[name] == dtype and value.dtype.itemsize == 2
        assert types[f"{name}.master"] == types[f"{name}.exp_avg"] == "f32"
    assert ("optimizer.loss_scale" in types) == (dtype == "f16")
    (update,) = (
        op
        for op in read_program(program).walk()
        if op.name == "train.adamw" and _type(op.results[0]) == (4, 8, "f32")
    )
    assert update.operands[0].name_hint == "_0_weight_master"


def test_autocast_of_an_import(code: Path, tmp_path: Path) -> None:
    """Parameters and norms stay in f32; products are computed in 16 bits."""
    program = tmp_path / "m.mlir"
    options = ("--autocast", "bf16", "--training", "--loss", "mse")
    succeed("import", f"{code}:with_a_norm", *options, "-o", program)
    types = _types(program)
    weights = load_weights(tmp_path / "m.safetensors")
    assert all(types[name] == "f32" for name in weights)
    assert {value.dtype for value in weights.values()} == {np.dtype("float32")}
    assert not any(name.endswith(".master") for name in types)
    computed: dict[str, set[str]] = {}
    for op in read_program(program).walk():
        if op.results:
            computed.setdefault(op.name, set()).add(str(_type(op.results[0])[-1]))
    assert computed["onnx.Gemm"] == {"bf16"}
    assert computed["train.layer_norm"] == computed["train.layer_norm_grad"] == {"f32"}


def _type(value: SSAValue) -> tuple[Any, ...]:
    """Returns the sizes of a tensor and the name of its elements' type."""
    assert isinstance(value.type, TensorType)
    return (*value.type.get_shape(), str(value.type.element_type))


def _types(program: Path) -> dict[str, str]:
    """Returns the type of the elements of a program's arguments, by name."""
    function = entry_function(read_program(program))
    values = [_type(argument)[-1] for argument in function.body.block.args]
    return dict(zip(argument_names(function), values, strict=True))


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("{}:nothing", "has no function 'nothing'; it has make, by_name, with_a_norm"),
        ("{}:SIZE", "has no function 'SIZE'"),
        ("{}:module_alone", "returns Sequential; it has to return (module, args)"),
        ("{}:no_example", "returns tuple of Sequential, int; it has to return"),
        ("{}:broken", "broken raises NameError: name 'missing' is not defined"),
        ("{}:leaving", "leaving raises SystemExit: 0"),
        ("{}:unusable", "can export Sequential: in its part '1' (Linear): "),
        ("{}", "is code; say which function makes the model"),
        ("{}.py:make", "there is no file"),
    ],
)
def test_what_is_wrong_with_a_function(
    code: Path, tmp_path: Path, model: str, error: str
) -> None:
    told = failure("import", model.format(code), "-o", tmp_path / "m.mlir")
    assert error in told


CONFIGS = [
    (LLAMA, "causal-lm", "--seq", "[2, 16, 64]"),
    (BERT, "masked-lm", "--seq", "[2, 16, 64]"),
    (BERT, "sequence-classification", "--seq", "[2, 2]"),
    (T5, "seq2seq-lm", "--seq", "[2, 16, 64]"),
    (T5, "seq2seq-lm", "--target-seq 8 --seq", "[2, 8, 64]"),
    (VIT, "image-classification", "", "[2, 2]"),
]
MARKS = ((), pytest.mark.slow, pytest.mark.slow, pytest.mark.slow, (), ())
"""`make test` imports a model of words and one of images; a task more is another head."""


def _config(folder: Path, content: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "task", "seq", "shape"),
    [
        pytest.param(*case, id=f"{case[0]['model_type']}-{case[1]}", marks=marks)
        for case, marks in zip(CONFIGS, MARKS, strict=True)
    ],
)
def test_a_configuration(
    tmp_path: Path, content: Any, task: str, seq: str, shape: str
) -> None:
    config = _config(tmp_path, content)
    texts: list[str] = []
    # That models without values have the same program is tested in frontends/torch.
    for meta in ([], ["--meta"]) if IS_THOROUGH or content is LLAMA else ([],):
        program = tmp_path / f"m{len(meta)}.mlir"
        lengths = f"{seq} 16".split() if seq else []
        options = ["--task", task, "--batch", "2", *lengths, *meta]
        told = succeed("import", "--transformers", config, *options, "-o", program)
        assert ("have no values" in told.errors) == bool(meta)
        module = read_program(program)
        module.attributes.clear()
        texts.append(str(module))
    assert all(text == texts[0] for text in texts[1:])
    result = "tensor<" + shape.strip("[]").replace(", ", "x") + "xf32>"
    assert f"-> ({result}" in texts[0] or f"-> {result}" in texts[0]


@pytest.mark.slow
def test_the_largest_llama_is_imported_in_a_minute_and_four_gigabytes(
    tmp_path: Path,
) -> None:
    sizes = dict(hidden_size=16384, intermediate_size=53248, vocab_size=128256)
    heads = dict(num_attention_heads=128, num_key_value_heads=8)
    content = LLAMA | sizes | heads | dict(num_hidden_layers=126)
    config = _config(tmp_path, content | dict(max_position_embeddings=8192))
    options = ("--task", "causal-lm", "--batch", "8", "--seq", "4096", "--meta")
    command = ("import", "--transformers", config, *options, "-o", tmp_path / "m.mlir")
    code = """if True:
        import resource, sys
        from distir.tools.cli import main
        code = main(sys.argv[1:])
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(code, used.ru_utime + used.ru_stime, used.ru_maxrss)"""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    failed, seconds, kilobytes = done.stdout.split()[-3:]
    assert failed == "0" and float(seconds) < 60 and int(kilobytes) < 4 << 20


def test_a_model_without_values_runs(tmp_path: Path) -> None:
    """What no checkpoint has, such as the frequencies of rotary embeddings, has values."""
    config, program = _config(tmp_path, LLAMA), tmp_path / "m.mlir"
    options = ("--task", "causal-lm", "--batch", "2", "--seq", "8", "--meta")
    training = ("--training", "--loss", "cross_entropy", "--optimizer", "sgd")
    succeed("import", "--transformers", config, *options, *training, "-o", program)
    weights = load_weights(tmp_path / "m.safetensors")
    assert list(weights) == ["model.rotary_emb.inv_freq"]
    np.testing.assert_allclose(weights["model.rotary_emb.inv_freq"][0], 1.0)
    succeed("simulate", program, "--cluster", "dgx2", "-d", "2", "-t", "2")
    dist, plan = tmp_path / "best.mlir", tmp_path / "plan.json"
    words = ("--cluster", "dgx2", "--devices", "2", "--jobs", "1")
    search = ("search", program, *words, "--save-plan", plan, "-o", dist)
    told = succeed(*search).output
    saved = distir.Plan.load(plan)
    assert str(saved.result.plan) in told and saved.devices == 2 and saved.trains
    assert distir.simulate(dist).step_time_s == saved.time_s


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (LLAMA, "--task masked-lm --seq 8", "it has it for causal-lm"),
        (LLAMA, "--task causal-lm", "give --seq"),
        (LLAMA, "--task causal-lm --seq 64", "longer than the 32 positions"),
        (LLAMA, "--task causal-lm --seq 8 --target-seq 4", "what the decoder gets"),
        (LLAMA, "--seq 8", "--transformers needs --task"),
        ({"model_type": "nobody"}, "--task causal-lm --seq 8", "is 'nobody'"),
        ([], "--task causal-lm --seq 8", '"model_type" is None'),
        (LLAMA, "--task causal-lm --seq 8 --dim x=3", "--dim is for ONNX files"),
        (LLAMA, "--task causal-lm --seq 8 other.onnx", "give one model"),
        (None, "--task causal-lm --seq 8", "cannot read"),
    ],
)
def test_what_is_wrong_with_a_configuration(
    tmp_path: Path, content: Any, options: str, error: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        _config(tmp_path, content)
    command = ("import", "--transformers", path, "--batch", "2", *options.split())
    assert error in failure(*command, "-o", tmp_path / "m.mlir")


def test_options_without_a_configuration(tmp_path: Path) -> None:
    told = failure("import", "m.onnx", "--seq", "8", "-o", tmp_path / "m.mlir")
    assert "--seq is of use with --transformers only" in told
    assert "give one model" in failure("import", "-o", tmp_path / "m.mlir")


def test_dropout_is_not_dropped_without_a_word(code: Path, tmp_path: Path) -> None:
    plain, kept = tmp_path / "plain.mlir", tmp_path / "kept.mlir"
    model = f"{code}:with_dropout"
    told = "is imported in evaluation mode: 1 in train() would drop"
    assert told in succeed("import", model, "-o", plain).errors
    assert "onnx.Dropout" not in plain.read_text()
    done = succeed("import", model, "--training-mode", "-o", kept)
    assert "onnx.Dropout" in kept.read_text()
    for told in (done, succeed("import", f"{code}:make", "-o", plain)):
        assert "evaluation mode" not in told.errors
    script, asked = tmp_path / "s.py", tmp_path / "asked.mlir"
    script.write_text(
        "from distir.scheduling import Columns\n\n"
        'def schedule(s):\n    s["0"].split(Columns("t"))\n'
    )
    for options in ((), ("--training", "--loss", "mse")):
        done = succeed("schedule", kept, script, "--verify", *options, "-o", asked)
        assert "0.0e+00" in done.output
    # With --training the output is the step, which distributes as it is.
    dist = tmp_path / "dist.mlir"
    succeed("distribute", asked, "--cluster", "cpu", "-t", "2", "-o", dist)
    assert "train.dropout" in dist.read_text()


@pytest.mark.filterwarnings("ignore:PyTorch's older exporter wrote")
@pytest.mark.parametrize(
    ("function", "way", "line"),
    [
        ("with_a_branch", ["--allow", "control-flow"], "if x.sum() > 0"),
        ("with_a_counter", ["--allow", "mismatch"], "self.calls.add_(1)"),
        ("with_a_counter", ["--no-check"], "self.calls.add_(1)"),
    ],
)
def test_what_python_does_once_is_allowed_by_name(
    code: Path, tmp_path: Path, function: str, way: list[str], line: str
) -> None:
    program = tmp_path / "m.mlir"
    command = ["import", f"{code}:{function}", "--training", "--loss", "mse"]
    command += ["-o", str(program)]
    message = failure(*command)
    assert line in message
    if way[0] == "--allow":
        assert " ".join(way) in message
    assert not program.exists()
    succeed(*command, *way)
    assert "loss" in program.read_text()


def test_onnx_files_have_nothing_to_be_checked_against(tmp_path: Path) -> None:
    for option in (("--no-check",), ("--allow", "mismatch")):
        model, out = tmp_path / "m.onnx", tmp_path / "m.mlir"
        message = failure("import", model, "-o", out, *option)
        assert "--no-check and --allow are for modules" in message
