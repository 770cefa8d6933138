"""Pipelines that cannot be are one paragraph and a non-zero exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import failure, succeed, write_program


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two layers, for inference."""
    return write_program(tmp_path / "model.mlir")


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A training step of three layers."""
    path = tmp_path / "step.mlir"
    sizes = ("--layers", "3", "--d-model", "16", "--batch", "8")
    succeed("build", "mlp", *sizes, "--training", "--loss", "mse", "-o", path)
    return path


def distribute(program: Path, *options: str) -> tuple[str | Path, ...]:
    output = program.with_name("dist.mlir")
    return ("distribute", program, "--cluster", "dgx2", *options, "-o", output)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-p 3 -k 2", "3 stages were asked for, but the program has 2 layers"),
        ("-p 2 -k 2 --chunks 2", "4 stages were asked for"),
        ("-p 2 --stages uniform", "the program has 0 outlined layers"),
        (
            "-p 2 -k 3",
            "the batch of 8 (dimension 0 of input 'x') cannot be split evenly",
        ),
        ("-p 2 -k 4 -d 4", "over axis 'd' of size 4 in each of 4 parts"),
        ("-p 3 -k 2 --stages l1 --stages l0", "goes backwards: 'l0' begins no later"),
        ("-p 2 -k 2 --stages l0", "goes backwards: 'l0' begins no later"),
        ("-p 2 -k 2 --stages l7", "no op of the forward pass is in scope 'l7'"),
        ("-p 2 -k 2 --stages l0 --stages l1", "goes backwards: 'l0' begins no later"),
        ("-p 2 -k 2 --schedule zero-bubble", "none called 'zero-bubble'"),
        ("-p 2 -k 2 --schedule 1f1b", "the schedule has backwards, but"),
        ("-d 2 --schedule forward", "schedule is of a pipeline, but p and k are 1"),
        ("-p 8 -d 4", "needs 32 devices, but cluster @dgx2 has 16"),
    ],
)
def test_inference(model: Path, options: str, message: str) -> None:
    assert message in failure(*distribute(model, *options.split()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--schedule forward", "the schedule has no backward, but the program is a"),
        ("--schedule 1f1b --chunks 2", "it has 1 chunk (stages on each rank), not 2"),
        ("--schedule interleaved-1f1b --chunks 1", "it has 2 or more chunks"),
        ("--schedule zbv", "4 stages were asked for, but the program has 3"),
    ],
)
def test_training(step: Path, options: str, message: str) -> None:
    command = distribute(step, "-p", "2", "-k", "2", *options.split())
    assert message in failure(*command)


@pytest.mark.parametrize("number", ["0", "-1", "two"])
@pytest.mark.parametrize("option", ["-p", "-k", "--chunks"])
def test_numbers(model: Path, option: str, number: str) -> None:
    message = failure(*distribute(model, option, number), code=2)
    assert f"'{number}' is not a positive whole number" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1", "stage 1 has no backward of micro-batch 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1", "add 1W1 after it"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "it would deadlock: rank 0 waits at 0B0"),
        ("0F0,0F1,0B0,0B1", "the schedule has 1 ranks, but p is 2"),
        ("0F0,0B0\n1F0,1B0", "the schedule has 1 micro-batches, but"),
        ("0F0,0F1\n1F0,1F1", "the schedule has no backward, but"),
        ("0F0,0F1,0X0", "0X0"),
        ("", "no ranks"),
        ("\0", "row 1 (rank 0), column 1"),
    ],
)
def test_schedule_files(step: Path, text: str, message: str) -> None:
    file = step.with_name("schedule.csv")
    file.write_text(text)
    options = ("-p", "2", "-k", "2", "--schedule-file", str(file))
    assert message in failure(*distribute(step, *options))


def test_schedule_file_that_cannot_be_read(step: Path) -> None:
    for path, message in (
        (step.with_name("missing.csv"), "No such file"),
        (step.parent, "directory"),
    ):
        options = ("-p", "2", "-k", "2", "--schedule-file", str(path))
        assert message in failure(*distribute(step, *options))
    file = step.with_name("binary.csv")
    file.write_bytes(bytes(range(256)))
    options = ("-p", "2", "-k", "2", "--schedule-file", str(file))
    assert "is not text in UTF-8" in failure(*distribute(step, *options))


def test_two_schedules(step: Path) -> None:
    file = step.with_name("schedule.csv")
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1")
    options = ("-p", "2", "-k", "2", "--schedule-file", str(file))
    succeed(*distribute(step, *options))
    succeed("check", step, step.with_name("dist.mlir"))
    message = failure(*distribute(step, *options, "--schedule", "1f1b"))
    assert "leave out the name of a schedule" in message
    message = failure(*distribute(step, *options, "--chunks", "1"))
    assert "leave out chunks" in message
