"""
Packages of models that were imported without values start from weights of every form, or
from new values, of which each rank reads or draws its own part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.package_starts import start
from support.parallel_scripts import cross_entropy, tiny_llama
from support.ranks import run_ranks
from support.thoroughness import IS_THOROUGH
from torch.distributed.checkpoint.state_dict_saver import save

import distir
from distir.errors import DistIRError
from distir.launch.packages import Spawner, Training, run_package
from distir.launch.timing_rank import load_package
from distir.runtime import runtime

IDS = torch.arange(32).reshape(4, 8) % 16
LABELS = (IDS + 1) % 16
PLANS: dict[str, dict[str, Any]] = {
    "d2 t2 zero 3": dict(d=2, t=2, zero=3),
    "p2 d2 k2 zero 1": dict(p=2, d=2, k=2, zero=1),
}


@cache
def model() -> torch.nn.Module:
    """The model with values, which nothing but files of weights has."""
    torch.manual_seed(0)
    return tiny_llama().eval()


@cache
def step() -> Any:
    """A training step of the model, imported without values, that learns nothing."""
    with torch.device("meta"):
        module = tiny_llama()
    options: dict[str, Any] = dict(training=True, loss="cross_entropy")
    options |= dict(optimizer="adamw", learning_rate=0.0)
    return distir.import_model(module, (IDS,), **options)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packages of all plans."""
    folder = tmp_path_factory.mktemp("packages")
    found = dict[str, Path]()
    for name, options in PLANS.items():
        dist = distir.distribute(step(), cluster="cpu", **options)
        found[name] = distir.lower(dist, folder / name.replace(" ", "-")).folder
    return found


def safetensors(folder: Path) -> Path:
    save_file(state(), folder / "model.safetensors")
    return folder / "model.safetensors"


def several_files(folder: Path) -> Path:
    """As Hugging Face writes large models."""
    names = list(state())
    for number, own in enumerate((names[::2], names[1::2])):
        part = {name: state()[name] for name in own}
        save_file(part, folder / f"model-0000{number}-of-00002.safetensors")
    return folder


def of_a_script(folder: Path) -> Path:
    save({"model": state(), "step": 3}, checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


def of_a_module(folder: Path) -> Path:
    save(state(), checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


def state() -> dict[str, torch.Tensor]:
    """The parameters by name."""
    return {name: p.detach().clone() for name, p in model().named_parameters()}


FORMS: tuple[tuple[str, Callable[[Path], Path]], ...] = (
    ("p2 d2 k2 zero 1", safetensors),
    ("d2 t2 zero 3", several_files),
    ("p2 d2 k2 zero 1", of_a_script),
    ("d2 t2 zero 3", of_a_module),
)


@pytest.mark.parametrize(("plan", "form"), FORMS)
def test_trainings_start_from_weights_of_every_form(
    plan: str,
    form: Callable[[Path], Path],
    packages: dict[str, Path],
    tmp_path: Path,
    spawner: Spawner,
) -> None:
    weights = form(tmp_path)
    batch = {"input_ids": IDS.numpy(), "labels": LABELS.numpy()}
    told = list[str]()
    found = run_package(
        packages[plan],
        inputs=batch,
        weights=weights,
        training=Training(1),
        progress=told.append,
        spawner=spawner,
    )
    expected = cross_entropy(model()(IDS), LABELS).item()
    assert found["loss"][0] == pytest.approx(expected, rel=1e-5)
    for name, value in state().items():
        np.testing.assert_array_equal(found[name], value.numpy())
    assert not any("are drawn" in line for line in told)


@cache
def by_rank(plan: str, package: str, weights: str | None, resume: str = "") -> Any:
    """What `package_starts.start` returns on each rank."""
    count = prod(PLANS[plan].get(axis, 1) for axis in "dtp")
    return run_ranks(count, start, package, weights, resume)


@pytest.mark.parametrize(
    "plan", ["d2 t2 zero 3", pytest.param("p2 d2 k2 zero 1", marks=pytest.mark.slow)]
)
def test_no_rank_holds_more_than_its_part(
    plan: str, packages: dict[str, Path], tmp_path: Path, spawner: Spawner
) -> None:
    """
    From a file, from a checkpoint of another plan and (in `make test-all`) from new values,
    of which all plans draw the same.
    """
    other = next(name for name in PLANS if name != plan)
    folder, batch = tmp_path / "checkpoints", {"input_ids": IDS, "labels": LABELS}
    given = {name: value.numpy() for name, value in batch.items()}
    training = Training(1, 7, folder)  # with the seed of `start`
    new = run_package(packages[other], inputs=given, training=training, spawner=spawner)
    drawn = {name: torch.from_numpy(new[name]) for name in state()}
    assert drawn["lm_head.weight"].std() == pytest.approx(0.02, rel=0.1)
    package = str(packages[plan])
    program = load_package(package, "checked")[0]
    specs = {spec.name: spec for spec in program.ARGUMENTS}
    saved = load_package(str(packages[other]), "saved")[0]
    # PyTorch reads whole pieces of a checkpoint, one after the other.
    piece = max(
        prod(runtime.local_shape(spec, saved.MESHES.get(spec.mesh)))
        for spec in saved.ARGUMENTS
        if spec.role in ("parameter", "state")
    )
    starts: tuple[tuple[dict[str, torch.Tensor], int, str | None, str], ...] = (
        (drawn, 0, None, ""),
        (drawn, piece, str(folder), ""),
        (drawn, piece, None, str(folder)),
        (state(), 0, str(safetensors(tmp_path)), ""),
    )
    for expected, read, *source in starts if IS_THOROUGH else starts[1::2]:
        ranks = by_rank(plan, package, *source)
        for number, rank in enumerate(ranks):
            for name, part in rank["parts"].items():
                spec = specs[name]
                mesh = program.MESHES.get(spec.mesh)
                own = runtime.shard(expected[name], spec, mesh, number)
                np.testing.assert_array_equal(part, own.numpy())
            # Nothing larger was made than the largest part that it holds.
            assert rank["largest"] <= max(rank["own"], read)
        largest = max(value.numel() for value in expected.values())
        if "zero 3" in plan:
            assert all(rank["own"] < largest for rank in ranks)


def test_weights_that_lack_parameters_or_are_of_another_model(
    packages: dict[str, Path], tmp_path: Path, spawner: Spawner
) -> None:
    inputs = {"input_ids": IDS.numpy(), "labels": LABELS.numpy()}
    first, *others = state().items()
    parts = tmp_path / "most.safetensors"
    save_file(dict(others), parts)
    told = list[str]()

    def run(weights: Path) -> None:
        run_package(
            next(iter(packages.values())),
            inputs=inputs,
            weights=weights,
            training=Training(1),
            progress=told.append,
            spawner=spawner,
        )

    run(parts)
    count = len(others) + 1
    assert (
        f"the weights lack 1 of {count} parameters, such as {first[0]!r}, which are drawn"
        in told
    )
    wrong = {
        tmp_path / "empty": "is neither a checkpoint of torch.distributed.checkpoint",
        tmp_path / "other.safetensors": "has none of the program's tensors, such as",
        tmp_path / "f64.safetensors": "has type torch.float64, expected torch.float32",
        tmp_path / "damaged": "cannot be read",
    }
    (tmp_path / "empty").mkdir()
    save_file({"x": torch.ones(2)}, tmp_path / "other.safetensors")
    save_file(
        {name: value.double() for name, value in others}, tmp_path / "f64.safetensors"
    )
    save(state(), checkpoint_id=tmp_path / "damaged", no_dist=True)
    (shard,) = (tmp_path / "damaged").glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-99])
    for path, message in wrong.items():
        with pytest.raises(DistIRError, match=message) as error:
            run(path)
        assert "\n" not in str(error.value)
