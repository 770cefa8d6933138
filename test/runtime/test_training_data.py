"""Trainings on data from files and from a user's code, and their evaluation."""

from __future__ import annotations

import json
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.training_programs import distributed, package, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.interpreters.reference import program_runner
from distir.launch.packages import Spawner, Training, run_package
from distir.launch.timing_rank import load_package
from distir.lowering.torch_package import write_package
from distir.passes.differentiate import DifferentiatePass
from distir.program import argument_names, entry_function, result_names
from distir.runtime import runtime
from distir.runtime.loop import batches
from distir.transforms.slicing import evaluation_program

SAMPLES = np.random.default_rng(3).standard_normal((20, 8)).astype(np.float32)
TARGETS = np.tanh(SAMPLES[:, ::-1]).copy()

CODE = """
import json
import os
import sys
from types import SimpleNamespace
import numpy as np
import torch

FOLDER = os.path.dirname(__file__)
X, Y = (torch.from_numpy(np.load(f"{FOLDER}/{n}.npy")) for n in ("input", "labels"))


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        with open(f"{FOLDER}/read-{os.getpid()}", "a") as file:
            file.write(f"{index} ")
        return X[index], Y[index]


def dataset():
    return Pairs()


class Broken(Pairs):
    def __getitem__(self, index):
        raise OSError(f"sample {index % 1} is gone\\nfrom the disk")


class Killed(Pairs):
    def __getitem__(self, index):
        os.kill(os.getpid(), 9)


def broken():
    return Broken()


def killed():
    return Killed()


def whole(count=100):
    for at in range(count):
        rows = torch.arange(at * 8, at * 8 + 8) % 16
        yield {"labels": Y[rows], "input": X[rows].double().float()}


def two():
    return whole(2)


def while_saving():
    import threading
    import torch.distributed.checkpoint as dcp

    is_read, save = threading.Event(), dcp.save

    def slow(*arguments, **named):
        is_read.wait(20)
        save(*arguments, **named)

    dcp.save = slow
    for number, batch in enumerate(whole(4), 1):
        if number == 4:
            with open(f"{FOLDER}/seen-{os.getpid()}", "w") as file:
                file.write(" ".join(os.listdir(f"{FOLDER}/checkpoints")))
            is_read.set()
        yield batch


def part(number, of):
    size = 8 // of
    for batch in whole():
        own = slice(number * size, (number + 1) * size)
        yield batch["input"][own], batch["labels"][own]


def short():
    yield X[:4], Y[:4]


def wrong_kind():
    yield X[:8].long(), Y[:8]


def one():
    yield X[:8]


def fails():
    yield X[:8], Y[:8]
    raise RuntimeError("the disk is gone")


def small():
    return torch.utils.data.TensorDataset(X[:7], Y[:7])


def on_a_full_disk():
    import resource

    for count, batch in enumerate(whole()):
        if count == 3:
            # From here on no file of this process can grow beyond that.
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        yield batch


class Writer:
    def __init__(self, folder):
        self.folder, self.rows = folder, []

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))

    def close(self):
        with open(f"{FOLDER}/written-{os.getpid()}", "w") as file:
            json.dump([str(self.folder), self.rows], file)


def with_tensorboard():
    sys.modules["torch.utils.tensorboard"] = SimpleNamespace(SummaryWriter=Writer)
    return whole()


def without_tensorboard():
    sys.modules["torch.utils.tensorboard"] = None
    return whole()


number = 3
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with arrays of samples, and code that reads them."""
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "input.npy", SAMPLES)
    np.save(folder / "labels.npy", TARGETS)
    (folder / "data.py").write_text(CODE)
    return folder


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that splits batches in two; each part is on two ranks."""
    folder = tmp_path_factory.mktemp("several")
    return package(training_mlp(), folder / "package", d=2, t=2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package for one rank."""
    return package(training_mlp(), tmp_path_factory.mktemp("alone") / "package")


def losses(folder: Path, spawner: Spawner, training: Training, **more: Any) -> Any:
    return run_package(folder, spawner=spawner, training=training, **more)["loss"]


def over_steps(steps: int) -> dict[str, Any]:
    """The first two batches of samples in turn, one a step."""
    rows = [slice(step % 2 * 8, step % 2 * 8 + 8) for step in range(steps)]
    return {
        "input": np.stack([SAMPLES[r] for r in rows]),
        "labels": np.stack([TARGETS[r] for r in rows]),
    }


def test_arrays_and_functions_give_the_same_batches(
    data: Path, several: Path, spawner: Spawner
):
    expected = losses(several, spawner, Training(3), inputs=over_steps(3))
    assert expected[0] != expected[1]
    arrays = [f"{name}={data / name}.npy" for name in ("input", "labels")]
    functions = [[f"{data / 'data.py'}:{name}"] for name in ("whole", "part")]
    for source in (arrays, *functions):
        found = losses(several, spawner, Training(3, data=source))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_every_epoch_has_every_sample_once_and_no_rank_reads_the_others(
    data: Path, several: Path, spawner: Spawner, tmp_path: Path
):
    training = Training(4, data=[f"{data / 'data.py'}:dataset"], seed=5)
    found = losses(several, spawner, training)
    reads = [[int(i) for i in p.read_text().split()] for p in data.glob("read-*")]
    # 20 samples make two batches of 8; each of two parts is read by two ranks.
    assert [len(r) for r in reads] == [16] * 4
    epochs = [sorted(i for r in reads for i in r[at : at + 8]) for at in (0, 8)]
    for epoch in epochs:
        assert len(set(epoch)) == 16 and all(epoch.count(i) == 2 for i in epoch)
    assert epochs[0] != epochs[1]  # in another order, so that others are left out
    single = package(training_mlp(), tmp_path / "single")
    np.testing.assert_allclose(losses(single, spawner, training), found, rtol=1e-5)


def test_worker_processes_load_the_same_batches(
    data: Path, several: Path, spawner: Spawner
):
    source = [f"{data / 'data.py'}:dataset"]
    expected = losses(several, spawner, Training(2, data=source))
    ranks = set(data.glob("read-*"))
    training = Training(2, data=source, data_workers=2)
    found = losses(several, spawner, training)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    workers = set(data.glob("read-*")) - ranks
    # Each of four ranks has two of them, which read one of its two batches each.
    assert len(ranks) == 4
    assert [len(p.read_text().split()) for p in workers] == [4] * 8


@pytest.mark.parametrize(
    ("source", "workers", "message"),
    [
        ("broken", 0, "data.py:broken raises OSError: sample 0 is gone from the disk$"),
        ("broken", 1, "data.py:broken raises OSError: sample 0 is gone from the disk$"),
        ("killed", 1, "data.py:killed raises RuntimeError: DataLoader worker"),
    ],
)
def test_failures_of_data_are_one_paragraph_in_any_process(
    source: str,
    workers: int,
    message: str,
    data: Path,
    several: Path,
    spawner: Spawner,
):
    source = f"{data / 'data.py'}:{source}"
    training = Training(2, data=[source], data_workers=workers)
    with pytest.raises(DistIRError, match=message) as error:
        losses(several, spawner, training)
    assert "\n" not in str(error.value)


def test_arrays_stay_in_their_files(data: Path, several: Path):
    program = load_package(str(several), "mapped")[0]
    part = batches.BatchPart.of(program, 0)
    files = [data / f"{name}.npy" for name in ("input", "labels")]
    read = batches.read(part, [f"{file.stem}={file}" for file in files])
    mapped = Path("/proc/self/maps").read_text()
    assert all(str(file) in mapped for file in files)
    # A process keeps what it takes, not the file.
    own = read.at(1)
    assert own and all(v.untyped_storage().nbytes() == 4 * 8 * 4 for v in own.values())
    first = {name: value.clone() for name, value in own.items()}
    np.lib.format.open_memmap(files[0], "r+")[:] = 0
    assert all(torch.equal(own[name], first[name]) for name in own)
    assert not read.at(2)["input"].any()  # read when it is needed


def test_a_rank_of_a_pipeline_reads_its_part_of_every_micro_batch(
    data: Path, spawner: Spawner, tmp_path: Path
):
    single = package(training_mlp(), tmp_path / "single")
    several = package(training_mlp(), tmp_path / "several", p=2, d=2, k=2)
    for name in ("dataset", "part"):
        source = Training(4, data=[f"{data / 'data.py'}:{name}"], seed=5)
        expected = losses(single, spawner, source)
        for path in data.glob("read-*"):
            path.unlink()
        found = losses(several, spawner, source)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        if name == "dataset":
            reads = [p.read_text().split() for p in data.glob("read-*")]
            # Four batches of 8; a rank reads half of each, and half of each micro-batch.
            assert [len(r) for r in reads] == [16] * 4
            # Both stages of a part read the same, and both parts together everything.
            one, other = sorted({tuple(r) for r in reads})
            assert all(
                set(one[at : at + 4]).isdisjoint(other[at : at + 4]) for at in (0, 4)
            )


@pytest.mark.parametrize("options", [{"d": 2, "k": 2}, {"d": 2, "p": 2, "k": 4}])
def test_rows_are_those_that_a_part_of_a_whole_batch_has(
    options: dict[str, int], tmp_path: Path
):
    folder = package(training_mlp(batch=16), tmp_path / "package", **options)
    program = load_package(str(folder), "rows")[0]
    batch = {"input": torch.arange(128.0).reshape(16, 8), "labels": torch.ones(16, 8)}
    seen = list[int]()
    for rank in range(len(program.RANKS)):
        part = batches.BatchPart.of(program, rank)
        whole = part.cut(batch, "data", whole=True)
        own = {name: value[part.rows] for name, value in batch.items()}
        alone = part.cut(own, "data", whole=False)
        assert whole.keys() == alone.keys() == part.takes
        for name in whole:
            assert torch.equal(whole[name], alone[name])
            assert len(whole[name]) == 8
        if "input" in part.takes:
            seen += part.rows.tolist()
    assert sorted(seen) == list(range(16))


def test_whole_batches_of_an_iterable_are_dropped_when_they_are_cut(several: Path):
    alive = list[Any]()

    def make():
        for _ in range(3):
            batch = torch.ones(8, 8), torch.zeros(8, 8)
            alive.extend(map(weakref.ref, batch))
            yield batch
            del batch

    program = load_package(str(several), "whole")[0]
    part = batches.BatchPart.of(program, 0)
    for own in batches.Stream(part, make, "data", 0).batches():
        assert all(v.untyped_storage().nbytes() == 4 * 8 * 4 for v in own.values())
    assert len(alive) == 6 and not any(one() is not None for one in alive)


def test_a_resumed_run_goes_on_in_the_data(
    data: Path, several: Path, spawner: Spawner, tmp_path: Path
):
    for name in ("dataset", "whole"):
        source = [f"{data / 'data.py'}:{name}"]
        expected = losses(several, spawner, Training(3, data=source))
        folder = tmp_path / name
        losses(several, spawner, Training(1, data=source, checkpoints=folder))
        again = Training(3, data=source, checkpoints=folder, resume="if-any")
        found = losses(several, spawner, again)
        np.testing.assert_allclose(found, expected[1:], rtol=1e-6)


@pytest.mark.parametrize(
    ("source", "steps", "note"),
    [
        (
            "arrays",
            3,
            "the data has 2 batches, so that 3 steps go through it 1.5 times",
        ),
        (
            "dataset",
            3,
            "the data has 2 batches, so that 3 steps go through it 1.5 times",
        ),
        ("one batch", 3, "there is one batch, which each of the 3 steps takes"),
        ("arrays", 2, None),
        ("whole", 3, None),
    ],
)
def test_more_steps_than_there_are_data_are_said(
    data: Path, alone: Path, spawner: Spawner, source: str, steps: int, note: str
):
    sources = {"arrays": [f"{n}={data / n}.npy" for n in ("input", "labels")]}
    named = sources.get(source, [f"{data / 'data.py'}:{source}"])
    single = source == "one batch"
    inputs = {n: values[0] for n, values in over_steps(1).items()} if single else {}
    training = Training(steps, data=() if single else named)
    lines: list[str] = []
    losses(alone, spawner, training, inputs=inputs, progress=lines.append)
    told = [line for line in lines if line.startswith("note: ")]
    assert told == ([f"note: {note}; --data gives more"] if note else [])


@pytest.mark.parametrize("source", ["arrays", "whole", "dataset"])
def test_workers_that_load_nothing_are_said(
    data: Path, alone: Path, spawner: Spawner, source: str
):
    arrays = [f"{n}={data / n}.npy" for n in ("input", "labels")]
    named = arrays if source == "arrays" else [f"{data / 'data.py'}:{source}"]
    lines: list[str] = []
    training = Training(2, data=named, data_workers=1)
    losses(alone, spawner, training, progress=lines.append)
    told = [line for line in lines if "--data-workers" in line]
    if source == "dataset":
        assert not told
    else:
        (line,) = told
        assert line.startswith(
            f"note: --data-workers has no effect on {' '.join(named)}, which"
        )


def test_data_that_ends_early_loses_nothing(
    data: Path, several: Path, spawner: Spawner, tmp_path: Path
):
    training = Training(
        4, data=[f"{data / 'data.py'}:two"], checkpoints=tmp_path / "checkpoints"
    )
    with pytest.raises(DistIRError) as error:
        losses(several, spawner, training)
    assert re.search(
        r"data.py:two ended after 2 batches, before step 3 of 4.*checkpoint of step 2 is",
        str(error.value),
    )
    assert "\n" not in str(error.value)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-2"]


def test_steps_go_on_while_a_checkpoint_is_written(
    data: Path, several: Path, spawner: Spawner
):
    folder = data / "checkpoints"
    source = [f"{data / 'data.py'}:while_saving"]
    training = Training(4, data=source, checkpoints=folder, save_every=2)
    expected = losses(several, spawner, training)
    seen = [path.read_text() for path in data.glob("seen-*")]
    assert seen == [".lock .step-2.partial"] * 4  # when step 3 was done
    assert sorted(p.name for p in folder.iterdir()) == ["step-2", "step-4"]
    # It holds what there was after step 2.
    source = [f"{data / 'data.py'}:whole"]
    resumed = Training(4, data=source, checkpoints=folder, resume="2")
    found = losses(several, spawner, resumed)
    np.testing.assert_allclose(found, expected[2:], rtol=1e-6)


def test_a_full_disk_leaves_the_checkpoints_before(
    data: Path, several: Path, spawner: Spawner, tmp_path: Path
):
    folder = tmp_path / "checkpoints"
    training = Training(
        4, data=[f"{data / 'data.py'}:on_a_full_disk"], checkpoints=folder, save_every=1
    )
    with pytest.raises(DistIRError) as error:
        losses(several, spawner, training)
    assert re.search(
        r"rank \d: cannot write a checkpoint to .*checkpoints: .*File too large.*; "
        r"checkpoints of earlier steps are as they were",
        str(error.value),
    )
    assert "\n" not in str(error.value)
    # That of step 3 may have been written before.
    assert (folder / "step-2").exists() and not (folder / "step-4").exists()
    source = [f"{data / 'data.py'}:whole"]
    resumed = Training(4, data=source, checkpoints=folder, resume="2")
    expected = losses(several, spawner, Training(4, data=source))
    np.testing.assert_allclose(losses(several, spawner, resumed), expected[2:])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("data.py:short", r"gives input 'input' as \[4, 8\], but this process takes \[8, 8\]"),
        ("data.py:wrong_kind", "as torch.int64, but the program takes torch.float32"),
        ("data.py:one", "has 1 tensors, but the program takes 2: input, labels"),
        ("data.py:fails", "raises RuntimeError: the disk is gone"),
        ("data.py:small", "has 7 samples, which do not make a batch of 8"),
        ("data.py:number", "has no function 'number'"),
        ("other.py:f", "there is no file"),
    ],
)  # fmt: skip
def test_data_that_does_not_fit(
    source: str, message: str, data: Path, alone: Path, spawner: Spawner
):
    with pytest.raises(DistIRError, match=message):
        losses(alone, spawner, Training(3, data=[f"{data}/{source}"]))


def test_arrays_that_do_not_fit(data: Path, alone: Path, spawner: Spawner):
    np.save(data / "wide.npy", SAMPLES[:, :4])
    (data / "text.npy").write_text("no array")
    label = f"labels={data}/labels.npy"
    for array, message in {
        "x=input.npy": "no input or label 'x'; it takes input, labels",
        "input=wide.npy": r"gives input 'input' as \[8, 4\]",
        "input=text.npy": "cannot read the array",
    }.items():
        name, file = array.split("=")
        training = Training(2, data=[f"{name}={data}/{file}", label])
        with pytest.raises(DistIRError, match=message):
            losses(alone, spawner, training)


@pytest.mark.parametrize("options", [{"p": 2, "k": 2, "d": 2}, {"t": 2}])
def test_evaluations_are_the_loss_without_the_step(
    options: dict[str, int], data: Path, spawner: Spawner, tmp_path: Path
):
    module = training_mlp(optimizer="sgd", learning_rate=0.0)
    folder = write_package(
        distributed(module, **options), tmp_path / "package", evaluation=True
    )
    arrays = [f"{name}={data / name}.npy" for name in ("input", "labels")]
    log = tmp_path / "log.jsonl"
    training = Training(
        2,
        data=arrays,
        eval_every=2,
        eval_data=[f"{data / 'data.py'}:two"],
        log=log,
    )
    found = losses(folder, spawner, training)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    steps, evaluation = entries[:2], entries[2]
    # Nothing is learnt, and both batches of the evaluation are those of the steps.
    assert [entry["step"] for entry in entries] == [1, 2, 2]
    assert [entry["loss"] for entry in steps] == found.tolist()
    assert steps[0]["learning_rate"] == 0.0 and steps[0]["seconds"] > 0
    assert evaluation["evaluation loss"] == pytest.approx(found.mean(), rel=1e-6)


def test_losses_are_written_for_tensorboard(
    data: Path, spawner: Spawner, tmp_path: Path
):
    module = training_mlp(optimizer="sgd", learning_rate=0.0)
    folder = write_package(
        distributed(module, d=2), tmp_path / "package", evaluation=True
    )
    training = Training(
        2,
        data=[f"{data / 'data.py'}:with_tensorboard"],
        eval_every=2,
        eval_data=[f"{data / 'data.py'}:two"],
        tensorboard=tmp_path / "board",
    )
    found = losses(folder, spawner, training)
    (written,) = data.glob("written-*")  # by the first rank alone, when all is done
    board, rows = json.loads(written.read_text())
    assert board == str(tmp_path / "board")
    assert [r[1] for r in rows if r[0] == "loss"] == found.tolist()
    assert [r[2] for r in rows if r[0] == "loss"] == [1, 2]
    (evaluation,) = (row for row in rows if row[0] == "evaluation/loss")
    assert evaluation[1:] == [pytest.approx(found.mean(), rel=1e-6), 2]


def test_tensorboard_that_is_not_installed(
    data: Path, several: Path, spawner: Spawner, tmp_path: Path
):
    source = [f"{data / 'data.py'}:without_tensorboard"]
    training = Training(2, data=source, tensorboard=tmp_path / "board")
    with pytest.raises(DistIRError, match=r"--tensorboard needs .*--log-file") as error:
        losses(several, spawner, training)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_log_on_a_disk_that_is_full(data: Path, several: Path, spawner: Spawner):
    source = [f"{data / 'data.py'}:whole"]
    training = Training(2, data=source, log=Path("/dev/full"))
    message = "cannot write the log /dev/full: No space left on device"
    with pytest.raises(DistIRError, match=message) as error:
        losses(several, spawner, training)
    assert "\n" not in str(error.value)


def test_the_forward_program_gives_the_loss_alone():
    module = training_mlp()
    part = evaluation_program(module)
    part.verify()
    assert result_names(entry_function(part)) == ["loss"]
    names = argument_names(entry_function(module))
    assert argument_names(entry_function(part)) == names
    rng = np.random.default_rng(0)
    values: list[Any] = [
        np.zeros((), np.int64) if not shape else rng.random(shape, np.float32)
        for shape in (a.type.get_shape() for a in entry_function(module).args)  # type: ignore[attr-defined]
    ]
    (loss,) = program_runner(part)(values)
    whole = program_runner(module)(values)
    assert loss == whole[result_names(entry_function(module)).index("loss")]
    assert not any(op.name.startswith("train.") for op in part.walk())


def test_the_forward_program_of_running_statistics_is_refused():
    module = build_mlp(layers=1, d_model=4, batch=2)
    DifferentiatePass(loss="mse").apply(Context(), module)
    mark_as_statistics(module)
    with pytest.raises(DistIRError, match=r"updates 'layers.0.bias', as running stat"):
        evaluation_program(module)


def mark_as_statistics(module: ModuleOp) -> None:
    """Calls the bias a state that belongs to no parameter."""
    from xdsl.dialects.builtin import StringAttr

    from distir.dialects.dist_attributes import OF, ROLE
    from distir.program import argument_attributes, set_argument_attributes

    entry = entry_function(module)
    attributes = argument_attributes(entry)
    attributes[argument_names(entry).index("layers.0.bias")][ROLE] = StringAttr("state")
    for own in attributes:
        if own.get(OF) == StringAttr("layers.0.bias"):
            del own[OF]
    set_argument_attributes(entry, attributes)


def test_parts_of_batches_are_what_all_arguments_are_split_by():
    mesh = runtime.MeshSpec({"d": 2, "t": 3}, list(range(6)), [])
    both, one = (("d", None), ("t", None)), (("d", None),)
    specs = [
        runtime.Tensor(name, None, (12, 4), "m", (split, ()))
        for name, split in (("x", both), ("y", one))
    ]
    axes = batches.batch_axes(specs, {"m": mesh})
    assert axes == {"d": 2}
    assert batches.place_in_batch(axes, [mesh], 4) == (1, 2)
    shape, rest = batches.share(specs[0], axes)
    assert shape == [6, 4] and rest.split == ((("t", None),), ())
    assert (
        batches.batch_axes([*specs, runtime.Tensor("z", None, (4,))], {"m": mesh}) == {}
    )
    # Stages may have meshes of different shapes.
    other = runtime.MeshSpec({"d": 4}, list(range(6, 10)), [])
    elsewhere = runtime.Tensor("z", None, (12, 4), "n", (one, ()))
    assert batches.batch_axes([*specs, elsewhere], {"m": mesh, "n": other}) == {}
