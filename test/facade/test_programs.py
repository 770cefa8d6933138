"""The commands as functions: they do what the commands do."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import TWO_LAYERS, succeed, write_program
from torch import nn
from xdsl.dialects.builtin import ModuleOp

import distir
from distir.facade.model_program import ModelProgram
from distir.program.weights import load_weights

MLP: dict[str, Any] = dict(layers=2, d_model=16, batch=8)
SPLIT: dict[str, Any] = dict(cluster="cpu", d=2, t=2)


def test_files_are_those_of_the_commands(tmp_path: Path) -> None:
    by_command, ours = tmp_path / "a.mlir", tmp_path / "b.mlir"
    words = ("--layers", "2", "--d-model", "16", "--batch", "8", "--training")
    succeed("build", "mlp", *words, "-o", by_command)
    program = distir.build("mlp", **MLP, training=True)
    program.save(ours)
    assert ours.read_text() == by_command.read_text()
    both = tmp_path / "c.mlir", tmp_path / "d.mlir"
    options = ("--cluster", "cpu", "-d", "2", "--zero", "1", "--shard", "*0.weight:0=d")
    succeed("distribute", by_command, *options, "-o", both[0])
    shard = ["*0.weight:0=d"]
    distir.distribute(program, cluster="cpu", d=2, zero=1, shard=shard).save(both[1])
    assert both[0].read_text() == both[1].read_text()
    assert program.module.body.block.first_op is not None
    program.save(both[1])  # it stayed as it was
    assert both[1].read_text() == by_command.read_text()


def test_a_module_is_imported_as_by_the_command(tmp_path: Path) -> None:
    by_command, ours = tmp_path / "a.mlir", tmp_path / "b.mlir"
    code = tmp_path / "model.py"
    code.write_text(
        "import torch\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.ones(2, 4),)\n"
    )
    words = ("--training", "--loss", "mse", "--optimizer", "sgd", "--dtype", "bf16")
    succeed("import", f"{code}:make", *words, "-o", by_command)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4))
    options: dict[str, Any] = dict(loss="mse", optimizer="sgd", dtype="bf16")
    program = distir.import_model(module, (torch.ones(2, 4),), training=True, **options)
    program.save(ours)
    expected = by_command.read_text().replace("a.safetensors", "b.safetensors")
    assert ours.read_text() == expected
    theirs, own = (
        load_weights(p.with_suffix(".safetensors")) for p in (by_command, ours)
    )
    assert list(theirs) == list(own) != []
    for name, value in theirs.items():
        np.testing.assert_array_equal(own[name], value)


def test_a_simulation_is_that_of_the_command(tmp_path: Path) -> None:
    path, theirs, ours = (tmp_path / n for n in ("d.mlir", "a.json", "b.json"))
    distir.distribute(distir.build("mlp", **MLP, training=True), **SPLIT).save(path)
    succeed("simulate", path, "--memory", "--json", theirs)
    distir.simulate(path).save(ours)
    assert ours.read_text() == theirs.read_text()


def test_a_package_is_that_of_the_command(tmp_path: Path) -> None:
    path, theirs, ours = (tmp_path / n for n in ("d.mlir", "a", "b"))
    distir.distribute(distir.build("mlp", **MLP), **SPLIT).save(path)
    succeed("lower", path, "-o", theirs)
    distir.lower(path, ours)
    texts = [
        {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*.*")}
        for folder in (theirs, ours)
    ]
    assert texts[0] == texts[1] and Path("program.py") in texts[0]


@pytest.mark.usefixtures("shared_ranks")
def test_a_check_and_a_run_are_those_of_the_commands(tmp_path: Path) -> None:
    path, dist, theirs = (tmp_path / n for n in ("m.mlir", "d.mlir", "a.npz"))
    program = distir.build("mlp", **MLP)
    program.save(path)
    distir.distribute(program, cluster="cpu", t=2).save(dist)
    printed = succeed("check", path, dist, "--seed", "3").output
    (found,) = distir.check(path, dist, seed=3).outputs
    row = (
        f"{found.name} {found.absolute:.3g} {found.relative:.3g} {found.tolerance:.3g}"
    )
    assert f"{row} equal" in " ".join(printed.split()) and found.absolute > 0
    succeed("run", dist, "--backend", "gloo", "--seed", "3", "--outputs", theirs)
    result = distir.run(dist, backend="gloo", seed=3)
    with np.load(theirs) as arrays:
        assert set(arrays) == set(result.outputs) != set()
        for name, array in arrays.items():
            np.testing.assert_array_equal(result[name], array)
    other = distir.run(dist, backend="gloo", seed=4)
    assert any((other[n] != a).any() for n, a in result.outputs.items())


def test_simulate_shows_what_the_command_writes(tmp_path: Path) -> None:
    program = distir.build("mlp", **MLP)
    simulated = distir.simulate(program, **SPLIT)
    again = distir.simulate(distir.distribute(program, **SPLIT))
    assert simulated.step_time_s == again.step_time_s > 0
    assert simulated.memory_bytes > 0
    for name in ("report.html", "report.json"):
        again.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 500
    again.save_trace(tmp_path / "trace.json")
    assert "<iframe" in again._repr_html_() and "GB on the fullest" in str(again)  # pyright: ignore[reportPrivateUsage]
    assert "no ending of a report '.txt'" in told(
        lambda: again.save(tmp_path / "a.txt")
    )


def test_show_says_what_the_command_prints(tmp_path: Path) -> None:
    program = distir.build("mlp", **MLP)
    path, tables = tmp_path / "a.mlir", tmp_path / "show.json"
    distir.distribute(program, **SPLIT).save(path)
    shown = distir.show(program, **SPLIT)
    assert str(shown) == succeed("show", path).output
    assert shown._repr_html_().startswith("<pre>")  # pyright: ignore[reportPrivateUsage]
    succeed("show", path, "--json", tables)
    shown.save(tmp_path / "ours.json")
    assert (tmp_path / "ours.json").read_text() == tables.read_text()
    one = distir.show(path, scope="*1*")
    assert {a.name for a in one.arguments} < {a.name for a in shown.arguments}
    assert one.communication
    assert "matches the scope 'x'" in told(lambda: distir.show(path, scope="x"))
    assert "distir.show: -d" in told(lambda: distir.show(program, d=2))


def test_a_cluster_is_what_the_command_writes(tmp_path: Path) -> None:
    path, ours = tmp_path / "my.mlir", tmp_path / "ours.mlir"
    words = ("--nodes", "2", "--devices-per-node", "4", "--nic", "200Gb/s")
    succeed("cluster", "--kind", "A100", *words, "-o", path)
    made = distir.cluster("A100", nodes=2, devices_per_node=4, nic="200Gb/s", name="my")
    made.save(ours)
    assert ours.read_text() == path.read_text() and "@my" in str(made)
    simulated = distir.simulate(distir.build("mlp", **MLP), cluster=ours, d=8)
    assert len(simulated.simulation.devices) == 8
    assert "say what one sends" in told(lambda: distir.cluster("A100", nodes=2))
    assert "no kind of device 'A1'" in told(lambda: distir.cluster("A1"))
    assert "--name" in told(lambda: distir.cluster("A100", name="a b"))


def test_schedule_applies_a_script(tmp_path: Path) -> None:
    path, script = tmp_path / "m.mlir", tmp_path / "s.py"
    sizes = dict(layers=2, d_model=16, heads=2, vocab=32, batch=2, seq=4)
    program = distir.build("gpt", **sizes)
    program.save(path)
    script.write_text(
        "def schedule(s):\n"
        "    ratio = s.knob('ratio', [0.5, 1.0])\n"
        "    s['transformer.h.*'].first(ratio).recompute('full')\n"
    )
    by_command, ours, given = tmp_path / "a.mlir", tmp_path / "b.mlir", str(program)
    succeed("schedule", path, script, "--set", "ratio=1.0", "-o", by_command)
    made = distir.schedule(program, script, set={"ratio": 1.0})
    made.save(ours)
    assert ours.read_text() == by_command.read_text()
    assert "dist.recompute" in str(made) and given == str(program)
    missing = tmp_path / "no.py"
    assert str(missing) in told(lambda: distir.schedule(program, missing))
    assert "rat" in told(lambda: distir.schedule(program, script, set={"rat": 1.0}))


@pytest.mark.usefixtures("shared_ranks")
def test_modules_with_weights_are_checked_and_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    x = torch.randn(8, 16)
    program = distir.import_model(model, (x,))
    dist = distir.distribute(program, cluster="cpu", t=2)
    compared = distir.check(program, dist, seed=1)
    assert compared and "equal" in compared._repr_html_()  # pyright: ignore[reportPrivateUsage]
    dist.save(tmp_path / "dist.mlir")
    assert (tmp_path / "dist.safetensors").is_file()
    read = ModelProgram.of(tmp_path / "dist.mlir")
    assert distir.check(program, read)
    package = distir.lower(dist, tmp_path / "package")
    assert "class" in package.source
    (name,) = (n for n, a in program_inputs(program) if a == "input")
    result = distir.run(dist, backend="gloo", inputs={name: x})
    (output,) = result.outputs.values()
    np.testing.assert_allclose(output, model(x).detach().numpy(), atol=1e-5)
    result.save(tmp_path / "outputs.npz")


@pytest.mark.usefixtures("shared_ranks")
def test_learning_rates_are_functions_of_the_step() -> None:
    step = distir.build("mlp", **MLP, training=True, optimizer="sgd", learning_rate=1.0)
    rates = {1: 0.0, 2: 1.0, 3: 0.0, 4: 0.0}
    result = distir.run(step, backend="gloo", steps=4, learning_rate=rates.__getitem__)
    first, second, third, fourth = result["loss"]
    assert first == second and third == fourth < second
    same = distir.run(step, backend="gloo", steps=2, learning_rate=1.0)
    assert same["loss"][1] == third
    decayed = distir.run(step, backend="gloo", steps=2, weight_decay=lambda _: 0.9)
    assert decayed["loss"][0] == first and decayed["loss"][1] != third
    warm = distir.run(step, backend="gloo", steps=2, warmup=2, decay="linear")
    assert first > warm["loss"][1] != third


def program_inputs(program: ModelProgram) -> list[tuple[str, str]]:
    from distir.program import argument_names, argument_roles, entry_function

    function = entry_function(program.module)
    return list(zip(argument_names(function), argument_roles(function), strict=True))


def test_a_plan_distributes_as_its_options(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.mlir")
    options: dict[str, Any] = dict(cluster="dgx2", world_size=2, jobs=1)
    plan = distir.search(path, **options, degrees=[(1, 2, 1)])
    planned = distir.distribute(path, plan=plan)
    asked = distir.distribute(path, cluster="dgx2", t=2)
    assert str(planned) == str(asked)
    assert "cannot be given beside" in told(
        lambda: distir.distribute(path, plan=plan, t=2)
    )


@pytest.mark.usefixtures("shared_ranks")
def test_every_function_returns_the_ir_a_file_and_a_view(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    x = torch.ones(8, 16)
    program = distir.import_model(model, (x,))
    dist = distir.distribute(program, cluster="cpu", d=2)
    made: dict[str, Any] = {
        "program.mlir": program,
        "built.mlir": distir.build("mlp", **MLP),
        "dist.mlir": dist,
        "report.html": distir.simulate(dist),
        "differences.json": distir.check(program, dist),
        "plan.json": distir.search(program, cluster="cpu", world_size=2, jobs=1),
        "package": distir.lower(dist, tmp_path / "lowered"),
        "outputs.npz": distir.run(dist, backend="gloo", inputs={"input": x}),
    }
    for name, result in made.items():
        assert isinstance(result.module, ModuleOp)
        result.module.verify()
        result.save(tmp_path / name)
        assert (tmp_path / name).exists()
        assert result._repr_html_().startswith("<")
    copied = {path.name for path in (tmp_path / "package").iterdir()}
    assert copied == {path.name for path in (tmp_path / "lowered").iterdir()}
    rows = json.loads((tmp_path / "differences.json").read_text())
    assert rows and all(row["within"] for row in rows)
    with np.load(tmp_path / "outputs.npz") as outputs:
        expected = model(x).detach().numpy()
        (found,) = outputs.values()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_ir_of_a_plan(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.mlir")
    options: dict[str, Any] = dict(cluster="dgx2", world_size=2, jobs=1)
    searches: list[dict[str, Any]] = [
        dict(degrees=[(1, 2, 1)]),
        dict(auto=True, overlap="off"),
    ]
    for more in searches:
        plan = distir.search(path, **options, **more)
        simulated = distir.simulate(ModelProgram(plan.module))
        assert simulated.step_time_s == plan.time_s
        assert str(plan.module) == str(distir.distribute(path, plan=plan).module)
        plan.save(tmp_path / "plan.json")
        read = distir.Plan.load(tmp_path / "plan.json")
        assert "comes from a file" in told(lambda plan=read: plan.module)
        assert str(distir.distribute(path, plan=read).module) == str(plan.module)
        copy = pickle.loads(pickle.dumps(plan))
        assert copy == plan and "comes from a file" in told(
            lambda plan=copy: plan.module
        )


def told(call: Any) -> str:
    with pytest.raises(distir.DistIRError) as error:
        call()
    return str(error.value)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    path = write_program(tmp_path / "m.mlir")
    other = write_program(tmp_path / "n.mlir", TWO_LAYERS.replace('"y"', '"z"'))
    calls: dict[str, Any] = {
        "'0' is not a positive": lambda: distir.distribute(path, cluster="cpu", d=0),
        "there is no option sequence_paralel; did you mean 'sequence_parallel'?": (
            lambda: distir.distribute(path, cluster="cpu", sequence_paralel=True)
        ),
        "distir.build mlp: there is no option ee": lambda: distir.build(
            "mlp", **MLP, ee=2
        ),
        "distir.distribute needs cluster=": lambda: distir.distribute(path),
        "invalid choice": lambda: distir.build("rnn", layers=2),
        "needs example inputs": lambda: distir.import_model(nn.Linear(2, 2)),
        "is no model": lambda: distir.import_model(3),  # type: ignore[arg-type]
        "a program is wanted": lambda: distir.simulate(3),  # type: ignore[arg-type]
        "over which cluster": lambda: distir.simulate(path, d=2),
        "html is an option of the command": lambda: distir.simulate(path, html="a"),
        "not the same program": lambda: distir.check(path, other),
        "of use with steps only": lambda: distir.run(
            path, backend="gloo", learning_rate=1.0
        ),
        "is nan in step 1": lambda: distir.run(
            path, backend="gloo", steps=2, weight_decay=float("nan")
        ),
        "outputs are returned": lambda: distir.run(path, backend="gloo", outputs="o"),
    }
    for expected, call in calls.items():
        assert expected in told(call)


def test_notebooks_show_programs() -> None:
    shown = distir.build("mlp", **MLP)._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "func.func" in shown and "input" in shown
