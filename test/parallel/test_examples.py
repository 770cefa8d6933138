"""The examples do what they say: scripts print the losses that PyTorch alone has."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt2.py"


def losses(*command: str, steps: int = 3) -> list[float]:
    """Returns the losses that a script prints: of every 20th step, and of the last."""
    done = subprocess.run(
        [sys.executable, *command, "--steps", str(steps)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]


@pytest.mark.slow
def test_a_training_script(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "4", str(SCRIPT)]
    plain = losses(str(SCRIPT), "--plain")
    assert len(plain) == 2
    assert losses(*run, "--save", str(folder)) == pytest.approx(plain, abs=2e-4)
    assert (folder / ".metadata").exists()
    pipeline = ("-d", "2", "-p", "2", "-k", "2", "--zero", "3")
    assert losses(*run, *pipeline) == pytest.approx(plain, abs=2e-4)


@pytest.mark.slow
def test_the_curve_of_a_training() -> None:
    """All 200 steps of GPT-2 at d2 t2 stay on the curve of PyTorch alone, and it falls."""
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "4", str(SCRIPT)]
    plain = losses(str(SCRIPT), "--plain", steps=200)
    assert len(plain) == 11 and plain[-1] < plain[0] - 1
    assert losses(*run, steps=200) == pytest.approx(plain, abs=2e-4)


@pytest.mark.slow
def test_adapters(tmp_path: Path) -> None:
    script = str(SCRIPT.with_name("finetune_lora.py"))
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "4", script]
    saved = [tmp_path / name for name in ("alone", "parallel")]
    plain = losses(script, "--plain", "--save", str(saved[0]))
    assert len(plain) == 2
    assert losses(*run, "--save", str(saved[1])) == pytest.approx(plain, abs=2e-4)
    alone, parallel = (load_file(p / "adapter_model.safetensors") for p in saved)
    assert len(alone) == 8 and alone.keys() == parallel.keys()
    for name, adapter in alone.items():
        torch.testing.assert_close(parallel[name], adapter, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_plan_from_a_configuration(tmp_path: Path) -> None:
    """A given plan of the smallest model; the search is that of other tests."""
    script = SCRIPT.with_name("plan_llama_70b.py")
    size = ("--model", "tiny", "--batch", "8", "--seq", "64", "--devices", "8")
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            *size,
            "-d",
            "2",
            "-t",
            "2",
            "-p",
            "2",
            "-k",
            "4",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"imported \d", done.stdout)
    assert re.search(r"s a step, .* on the fullest of 8 devices", done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "devices"),
    [
        ("--time-limit 90", 64),
        ("--model 405b --devices 16384 --batch 2048 -d 128 -t 8 -p 16 -k 16", 16384),
    ],
    ids=["70b searched", "405b given"],
)
def test_the_largest_are_planned(size: str, devices: int, tmp_path: Path) -> None:
    """In three minutes of CPU, that of processes it starts included, and six gigabytes."""
    script = str(SCRIPT.with_name("plan_llama_70b.py"))
    code = """if True:
        import resource, runpy, sys
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
        who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
        used = [resource.getrusage(each) for each in who]
        seconds = sum(each.ru_utime + each.ru_stime for each in used)
        print(seconds, max(each.ru_maxrss for each in used))"""
    done = subprocess.run(
        [sys.executable, "-c", code, script, *size.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"([\d.]+) s a step, .* on the fullest of (\d+) dev", done.stdout)
    assert found and float(found[1]) > 1 and int(found[2]) == devices
    seconds, kilobytes = map(float, done.stdout.split()[-2:])
    assert seconds < 180 and kilobytes < 6 << 20


def run_notebook(
    name: str, sizes: str = "", smaller: str = ""
) -> tuple[dict[str, Any], list[Any], str]:
    """
    Runs the cells of a notebook in order, with `smaller` instead of `sizes` in the first.
    Returns its names, what cells end with, and what they print.
    """
    notebook = json.loads(SCRIPT.with_name(name).read_text())
    texts = [
        "".join(cell["source"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    if sizes:
        assert texts[0].count(sizes) == 1
        texts[0] = texts[0].replace(sizes, smaller)
    names: dict[str, Any] = {}
    shown: list[Any] = []
    printed = StringIO()
    for text in texts:
        *body, last = ast.parse(text).body
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), "notebook", "exec"), names)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = eval(compile(expression, "notebook", "eval"), names)
                if value is not None:
                    shown.append(value)
            else:
                exec(compile(ast.Module([last], []), "notebook", "exec"), names)
    return names, shown, printed.getvalue()


@pytest.mark.slow  # `make docs` runs it as well
def test_the_notebook_plans_and_explains() -> None:
    """Its cells run in order, and what they end with shows itself."""
    sizes = "= 4, 256, 16", "= 1, 64, 8"  # as much, sooner
    names, shown, printed = run_notebook("plan_a_model.ipynb", *sizes)
    pages = [value._repr_html_() for value in shown]
    assert len(pages) == 4 and all(html.startswith("<") for html in pages)
    assert "step" in printed
    plan = names["plan"]
    assert names["report"].step_time_s == pytest.approx(plan.time_s, rel=1e-6)


@pytest.mark.slow  # `make docs` runs it too
def test_the_notebook_trains_with_a_plan() -> None:
    """The script that it writes prints the losses of PyTorch alone."""
    names, shown, printed = run_notebook("train_with_a_plan.ipynb")
    assert len(names["alone"]) == 5 and shown[-1] == names["alone"]
    assert all(line in printed for line in names["alone"])


@pytest.mark.slow  # `make docs` runs it too
def test_the_notebook_sizes_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells run in order, and it says how many devices a rate needs."""
    monkeypatch.chdir(tmp_path)
    sizes = "= 16, 2048, 4", "= 2, 256, 2"
    names, shown, printed = run_notebook("size_a_service.ipynb", *sizes)
    assert names["plan"].tokens_per_s > 0 and names["plan"].devices_needed >= 1
    assert shown[-1]._repr_html_().count("<svg") == 3
    assert printed.count("need") == 3 and "vllm serve" in printed
