"""Training on real processes: distributions agree, checkpoints move among them."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.programs import parse
from support.thoroughness import sampled
from support.training_programs import batches, package, training_gpt, training_mlp
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir import export
from distir.dialects.dist_attributes import INITIAL
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.interpreters.reference import program_runner
from distir.launch.packages import Spawner, Training, run_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    result_names,
    updated_arguments,
)
from distir.runtime import runtime
from distir.runtime.loop import initial
from distir.runtime.storage.folder_lock import FolderLock

Arrays = dict[str, npt.NDArray[Any]]
TOLERANCE = 1e-4


def train(
    folder: Path, module: ModuleOp, spawner: Spawner, training: Training
) -> Arrays:
    """The losses and final parameters of a training."""
    return run_package(
        folder, inputs=batches(module), spawner=spawner, training=training
    )


def assert_close(actual: Arrays, expected: Arrays) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(
            actual[name], array, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
        )


def by_reference(module: ModuleOp, steps: int) -> Arrays:
    """What the reference interpreter makes of the same training."""
    entry = entry_function(module)
    names, given = argument_names(entry), batches(module)
    values: dict[int, npt.NDArray[Any]] = {}
    attributes = argument_attributes(entry)
    for i, (name, role, argument) in enumerate(
        zip(names, argument_roles(entry), entry.body.block.args, strict=True)
    ):
        shape = shape_of(argument.type)
        if role == "parameter":
            start = INITIAL.of(attributes[i]) or ""
            spec = runtime.Tensor(name, torch.float32, shape, initial=start)
            values[i] = initial.parameter(spec, None, 0, 0).numpy()
        elif role == "state":
            dtype = np.int64 if name == "optimizer.step" else np.float32
            values[i] = np.zeros(shape, dtype)
        else:
            values[i] = given[name]
    losses: list[npt.NDArray[Any]] = []
    updates = updated_arguments(entry)
    run = program_runner(module)
    for _ in range(steps):
        results = run([values[i] for i in range(len(names))])
        losses.append(results[result_names(entry).index("loss")])
        values |= {argument: results[result] for result, argument in updates.items()}
    roles = argument_roles(entry)
    return {"loss": np.stack(losses)} | {
        name: values[i] for i, name in enumerate(names) if roles[i] == "parameter"
    }


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_threefry_gives_its_known_answers(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
):
    first, second = (torch.tensor([c]) for c in counter)
    assert tuple(int(x) for x in initial.threefry(key, first, second)) == expected


def test_random_numbers_are_almost_normal():
    numbers = initial.normal((1, 2), torch.arange(200_000))
    assert abs(numbers.mean()) < 0.01 and abs(numbers.std() - 1) < 0.01
    assert numbers.unique().numel() > 100_000
    far = initial.normal((1, 2), torch.arange(2**33, 2**33 + 4))
    assert not torch.equal(far, initial.normal((1, 2), torch.arange(4)))


@pytest.mark.parametrize(
    "split",
    [
        ((), ()),
        ((("d", None),), (("t", None),)),
        ((), (("t", 2),)),
        ((("t", None), ("d", None)), ()),
        ((("d", 1),), (("t", None),)),
    ],
)
def test_initial_parts_are_parts_of_the_whole(split: Any):
    mesh = runtime.MeshSpec({"d": 2, "t": 3}, [4, 5, 0, 1, 2, 3], [])
    spec = runtime.Tensor("w", torch.float32, (12, 12), "mesh", split)
    plain = runtime.Tensor("w", torch.float32, (12, 12))
    whole = initial.parameter(plain, None, 0, 3)
    for rank in mesh.ranks:
        part = initial.parameter(spec, mesh, rank, 3)
        assert torch.equal(part, runtime.shard(whole, spec, mesh, rank))


def test_initial_parameters_depend_on_name_and_seed():
    def drawn(name: str, seed: int) -> torch.Tensor:
        return initial.parameter(
            runtime.Tensor(name, torch.float32, (4, 4)), None, 0, seed
        )

    assert torch.equal(drawn("a", 0), drawn("a", 0))
    assert not torch.equal(drawn("a", 0), drawn("b", 0))
    assert not torch.equal(drawn("a", 0), drawn("a", 1))


@functools.cache
def step_and_results(make: Callable[[], ModuleOp]) -> tuple[ModuleOp, Arrays]:
    """A training step, and what the reference interpreter makes of three of them."""
    module = make()
    return module, by_reference(module, 3)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(training_mlp, {}, marks=pytest.mark.slow),
        (training_mlp, {"d": 2, "t": 2}),
        (training_gpt, {}),
        pytest.param(training_gpt, {"d": 2, "t": 2}, marks=pytest.mark.slow),
    ],
)
def test_distributions_train_alike(
    make: Any, options: dict[str, Any], tmp_path: Path, spawner: Spawner
):
    module, expected = step_and_results(make)
    folder = package(module, tmp_path, **options)
    assert_close(train(folder, module, spawner, Training(3)), expected)


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {
                "d": 2,
                "t": 2,
                "zero": 2,
                "checkpoint": "full",
                "sequence_parallel": True,
            },
            {"d": 4, "zero": 3},
            {"d": 2, "t": 2, "zero": 1, "checkpoint": "selective"},
        ],
        3,
    ),
)
def test_strategies_train_alike(
    options: dict[str, Any], tmp_path: Path, spawner: Spawner
):
    module, expected = step_and_results(training_gpt)
    folder = package(module, tmp_path, **options)
    assert_close(train(folder, module, spawner, Training(3)), expected)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"d": 2, "t": 2}, marks=pytest.mark.slow),
        # The masks of data parallelism: train/test_dropout.py.
        {"t": 2, "checkpoint": "full", "sequence_parallel": True},
        pytest.param(
            {
                "d": 2,
                "t": 2,
                "zero": 1,
                "checkpoint": "full",
                "sequence_parallel": True,
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_dropout_draws_alike(options: dict[str, Any], tmp_path: Path, spawner: Spawner):
    module = training_gpt(dropout=0.25)
    folder = package(module, tmp_path, **options)
    assert_close(train(folder, module, spawner, Training(2)), by_reference(module, 2))


def test_narrow_parameters_start_with_their_master_copies(
    tmp_path: Path, spawner: Spawner
):
    module = build_mlp(layers=1, d_model=8, batch=4, dtype="bf16")
    DifferentiatePass(loss="mse", learning_rate=1e-6).apply(Context(), module)
    folder = package(module, tmp_path, d=2, zero=1)
    found = train(folder, module, spawner, Training(1))
    plain = runtime.Tensor("layers.0.weight", torch.bfloat16, (8, 8))
    before = initial.parameter(plain, None, 0, 0).float().numpy()
    after = found["layers.0.weight"].astype(np.float32)
    np.testing.assert_allclose(after, before, rtol=1e-2, atol=1e-5)


def test_batches_over_steps(tmp_path: Path, spawner: Spawner):
    module = training_mlp()
    folder = package(module, tmp_path, d=2)
    given = batches(module)
    two = {name: np.stack([a, a * 2]) for name, a in given.items()}
    both = run_package(folder, inputs=two, spawner=spawner, training=Training(3))
    once = run_package(folder, inputs=given, spawner=spawner, training=Training(3))
    assert both["loss"][0] == once["loss"][0]
    assert both["loss"][1] > 2 * once["loss"][1]
    assert both["loss"][2] == pytest.approx(once["loss"][2], rel=0.1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            {"d": 2, "t": 2, "zero": 1}, {"d": 4, "zero": 3}, marks=pytest.mark.slow
        ),
        ({"p": 2, "k": 2}, {"p": 3, "k": 4, "blocking_sends": True}),
        pytest.param(
            {"p": 2, "k": 2, "d": 2, "zero": 1},
            {"p": 3, "k": 4, "blocking_sends": True},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"p": 2, "k": 2, "t": 2, "schedule": "zbv"},
            {"t": 4},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"t": 2, "d": 2}, {"p": 2, "k": 2, "d": 2, "t": 2}, marks=pytest.mark.slow
        ),
    ],
    ids=[
        *("without-pipelines", "among-pipelines", "among-pipelines-with-zero"),
        *("from-a-pipeline", "to-a-pipeline"),
    ],
)
def test_a_killed_run_resumes_under_another_distribution(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path, spawner: Spawner
):
    module, checkpoints = training_gpt(layers=3), tmp_path / "checkpoints"
    first = package(module, tmp_path / "first", **before)
    second = package(module, tmp_path / "second", **after)
    endless = Training(10**6, checkpoints=checkpoints, save_every=2)
    stopped: list[Exception] = []

    def run() -> None:
        try:
            train(first, module, spawner, endless)
        except DistIRError as error:
            stopped.append(error)

    parent = spawner.start().pid
    thread = Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not (checkpoints / "step-4").exists():
            assert thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        ranks = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for rank in ranks:
            os.kill(int(rank), signal.SIGKILL)
        thread.join()
    assert stopped and "SIGKILL" in str(stopped[0])
    saved = max(int(p.name.removeprefix("step-")) for p in checkpoints.glob("step-*"))
    resumed = Training(saved + 3, checkpoints=checkpoints, resume="latest")
    found = train(second, module, spawner, resumed)
    whole = package(module, tmp_path / "whole")
    expected = train(whole, module, spawner, Training(saved + 3))
    expected["loss"] = expected["loss"][saved:]
    assert_close(found, expected)


def saved_in(folder: Path, spawner: Spawner, **options: int) -> Path:
    """A folder with a package, `package`, and its checkpoints of steps 2 and 4."""
    module = training_mlp()
    path = package(module, folder / "package", **options)
    training = Training(4, checkpoints=folder / "checkpoints", save_every=2)
    train(path, module, spawner, training)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, spawner: Spawner) -> Path:
    """A package for two ranks, each of which has a part of the states, and checkpoints."""
    return saved_in(tmp_path_factory.mktemp("saved"), spawner, d=2, zero=1)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, spawner: Spawner) -> Path:
    """The same for four ranks, with parts over two axes."""
    return saved_in(tmp_path_factory.mktemp("split"), spawner, d=2, t=2, zero=1)


@pytest.fixture
def checkpoints(saved: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoints, to be damaged."""
    return Path(shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints"))


def resume(
    saved: Path, checkpoints: Path, spawner: Spawner, step: str = "latest", **more: Any
) -> Arrays:
    training = Training(6, checkpoints=checkpoints, resume=step, **more)
    return train(saved / "package", training_mlp(), spawner, training)


def test_every_part_is_written_once(split: Path):
    module, checkpoints = training_mlp(), split / "checkpoints"
    entry = entry_function(module)
    content = json.loads((checkpoints / "step-4" / "manifest.json").read_text())
    needed = sum(
        int(np.prod(shape_of(argument.type))) * (8 if "step" in name else 4)
        for name, role, argument in zip(
            argument_names(entry),
            argument_roles(entry),
            entry.body.block.args,
            strict=True,
        )
        if role in ("parameter", "state")
    )
    metadata = FileSystemReader(checkpoints / "step-4").read_metadata()
    stored = sum(
        chunk.sizes.numel() * tensor.properties.dtype.itemsize
        for tensor in metadata.state_dict_metadata.values()
        if isinstance(tensor, TensorStorageMetadata)
        for chunk in tensor.chunks
    )
    assert stored == needed
    files = content["manifest"]["files"]
    assert sorted(files) == [".metadata", *(f"__{rank}_0.distcp" for rank in range(4))]


def flip(file: Path) -> None:
    """Changes the last byte of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    """Takes the end of a file away."""
    file.write_bytes(file.read_bytes()[:-7])


PARTS = ("__1_0.distcp", ".metadata", "manifest.json")
DAMAGES = (cut, flip, Path.unlink)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        # Each part once, each damage once: files are compared by their sums alone.
        pytest.param(name, damage, marks=() if i == j else pytest.mark.slow)
        for i, name in enumerate(PARTS)
        for j, damage in enumerate(DAMAGES)
    ],
)
def test_a_damaged_checkpoint_is_refused(
    name: str, damage: Any, saved: Path, checkpoints: Path, spawner: Spawner
):
    damage(checkpoints / "step-4" / name)
    before = {p: p.read_bytes() for p in checkpoints.rglob("*") if p.is_file()}
    with pytest.raises(DistIRError, match=r"step-4 is .*(corrupt|incomplete)") as found:
        resume(saved, checkpoints, spawner)
    assert "--resume 2 goes on from there" in str(found.value)
    assert "\n" not in str(found.value)
    assert before == {p: p.read_bytes() for p in checkpoints.rglob("*") if p.is_file()}


def test_checkpoints_of_versions_before_say_how_to_go_on(
    saved: Path, checkpoints: Path, spawner: Spawner
):
    for file in checkpoints.glob("*/manifest.json"):
        body = json.loads(file.read_text())["manifest"] | {
            "format": "distir checkpoint 1"
        }
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        file.write_text(json.dumps({"sha256": digest, "manifest": body}))
    message = r"step-4 has the format 'distir checkpoint 1'.*--outputs as the weights of a new run$"
    with pytest.raises(DistIRError, match=message) as found:
        resume(saved, checkpoints, spawner)
    assert "\n" not in str(found.value)
    with pytest.raises(DistIRError, match=message):
        weights = checkpoints / "step-4"
        run_package(
            saved / "package",
            inputs=batches(training_mlp()),
            weights=weights,
            spawner=spawner,
            training=Training(1),
        )


@pytest.mark.parametrize(
    "options",
    sampled([{"p": 2, "k": 2, "d": 2, "zero": 3}, {"d": 4, "zero": 3}], 2),
    ids=str,
)
def test_resuming_under_zero_3(
    options: dict[str, Any], split: Path, spawner: Spawner, tmp_path: Path
):
    module = training_mlp()
    folder = package(module, tmp_path / "package", **options)
    checkpoints = Path(shutil.copytree(split / "checkpoints", tmp_path / "saved"))
    training = Training(6, checkpoints=checkpoints, resume="latest")
    found = train(folder, module, spawner, training)
    expected = by_reference(module, 6)
    expected["loss"] = expected["loss"][4:]
    assert_close(found, expected)


def test_going_on_from_the_previous_checkpoint(
    saved: Path, checkpoints: Path, spawner: Spawner
):
    copy = shutil.copytree(checkpoints, checkpoints.with_name("copy"))
    expected = resume(saved, copy, spawner, step="4")
    flip(checkpoints / "step-4" / "__0_0.distcp")
    found = resume(saved, checkpoints, spawner, step="2", save_every=2)
    assert len(found["loss"]) == 4
    np.testing.assert_allclose(found["loss"][2:], expected["loss"], rtol=1e-6)
    # The damaged one was written anew.
    again = resume(saved, checkpoints, spawner, step="4")
    np.testing.assert_allclose(again["loss"], expected["loss"], rtol=1e-6)


def test_an_interrupted_save_counts_for_nothing(
    saved: Path, checkpoints: Path, spawner: Spawner
):
    (checkpoints / "step-4").rename(checkpoints / ".step-4.partial")
    assert len(resume(saved, checkpoints, spawner)["loss"]) == 4
    assert sorted(p.name for p in checkpoints.iterdir()) == ["step-2", "step-6"]


def test_no_intact_checkpoint(saved: Path, checkpoints: Path, spawner: Spawner):
    for step in (2, 4):
        cut(checkpoints / f"step-{step}" / "__0_0.distcp")
    with pytest.raises(DistIRError, match="no intact earlier one"):
        resume(saved, checkpoints, spawner)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"resume": "3"}, "no checkpoint of step 3; it has 2, 4"),
        ({"resume": ""}, "has checkpoints already"),
        ({"resume": "4", "steps": 4}, "ask for more steps"),
    ],
)
def test_checkpoints_that_do_not_fit_the_run(
    training: dict[str, Any],
    message: str,
    saved: Path,
    checkpoints: Path,
    spawner: Spawner,
):
    wanted: dict[str, Any] = {"steps": 6, "checkpoints": checkpoints}
    options = Training(**wanted | training)
    with pytest.raises(DistIRError, match=message):
        train(saved / "package", training_mlp(), spawner, options)


def test_nothing_to_resume(saved: Path, tmp_path: Path, spawner: Spawner):
    with pytest.raises(DistIRError, match="no complete checkpoint"):
        resume(saved, tmp_path / "nowhere", spawner)


def test_a_checkpoint_of_another_program(
    checkpoints: Path, tmp_path: Path, spawner: Spawner
):
    module = training_mlp(optimizer="sgd", momentum=0.9)
    folder = package(module, tmp_path / "sgd")
    training = Training(6, checkpoints=checkpoints, resume="latest")
    with pytest.raises(DistIRError, match=r"no state 'layers.0.*momentum'"):
        train(folder, module, spawner, training)


def test_a_checkpoint_folder_that_cannot_be_written(
    saved: Path, tmp_path: Path, spawner: Spawner
):
    file = tmp_path / "file"
    file.write_text("no folder")
    with pytest.raises(DistIRError, match="file"):
        training = Training(1, checkpoints=file)
        train(saved / "package", training_mlp(), spawner, training)


def test_two_trainings_do_not_share_a_folder(
    saved: Path, checkpoints: Path, tmp_path: Path, spawner: Spawner
) -> None:
    lock = FolderLock(checkpoints)
    before = sorted(checkpoints.rglob("*"))
    for step in ("latest", ""):
        with pytest.raises(DistIRError, match=rf"process {os.getpid()} of host .* alr"):
            resume(saved, checkpoints, spawner, step)
    # Who only reads is not kept from it.
    export(checkpoints, tmp_path / "m.safetensors")
    given = batches(training_mlp())
    run_package(
        saved / "package",
        inputs=given,
        weights=checkpoints,
        training=Training(1),
        spawner=spawner,
    )
    assert sorted(checkpoints.rglob("*")) == before
    lock.release()
    assert len(resume(saved, checkpoints, spawner)["loss"]) == 2
    assert not (checkpoints / ".lock").exists()


def test_updates_that_change_the_type_are_refused(tmp_path: Path):
    module = parse("""
    func.func @main(%x: tensor<4xf32> {dist.name = "x", dist.role = "state"})
        -> (tensor<2xf32> {dist.name = "y", dist.updates = "x"}) {
      %y, %z = onnx.Split(%x) {num_outputs = 2 : si64} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
      func.return %y : tensor<2xf32>
    }
    """)
    with pytest.raises(DistIRError, match=r"updates argument 'x'.*another type"):
        write_package(module, tmp_path / "package")
