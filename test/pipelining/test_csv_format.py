"""PyTorch's CSV: both ways through PyTorch itself, and what is wrong in a file."""

from pathlib import Path

import pytest
from support.torch_schedules import as_schedule, multi_stage, run_dry, runtime

from distir.errors import DistIRError
from distir.pipelining import SCHEDULES, build_schedule, read_csv, write_csv

SIZES = [(1, 2), (2, 4), (3, 7), (4, 8), (4, 3)]


def test_text() -> None:
    schedule = build_schedule("1f1b", 2, 2)
    assert write_csv(schedule) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    idle = "0F0, 0F1 ,,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1\r\n\r\n"
    assert read_csv(idle) == schedule


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "forward"])
def test_pytorch_runs_ours(
    name: str, ranks: int, micro_batches: int, tmp_path: Path
) -> None:
    """PyTorch loads our file, adds its sends, and finds no deadlock."""
    schedule = build_schedule(name, ranks, micro_batches)
    file = tmp_path / "schedule.csv"
    file.write_text(write_csv(schedule))
    theirs = runtime(ranks, micro_batches, schedule.stages // ranks)
    theirs._load_csv(str(file), format="compute_only")
    assert as_schedule(theirs.pipeline_order) == schedule
    run_dry(theirs)


@pytest.mark.parametrize("form", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("interleaved-1f1b", 2),
        ("interleaved-1f1b", 3),
        ("interleaved-zero-bubble", 2),
        ("zbv", 2),
        ("dualpipev", 2),
    ],
)
def test_we_read_what_pytorch_writes(
    name: str, chunks: int, form: str, tmp_path: Path
) -> None:
    """Both of PyTorch's forms; sends, receives and the like are skipped."""
    file = tmp_path / "schedule.csv"
    multi_stage(name, 4, 8, chunks)._dump_csv(str(file), format=form)
    assert read_csv(file.read_text()) == build_schedule(name, 4, 8, chunks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0", r"row 1 \(rank 0\), column 2: '0X0' is no action: write the stage"),
        ("0F0,0B0\n1F0,,1B\n", r"row 2 \(rank 1\), column 3: '1B' is no action"),
        ("0F0,0b0", r"column 2: '0b0' is no action"),
        ("0F0;0B0", r"column 1: '0F0;0B0' is no action"),
        ("(0F0;0Q0)OVERLAP_F_B", r"column 1: '0Q0' is no action"),
        ("F0", r"column 1: 'F0' is no action"),
        ("-1F0,-1B0", r"column 1: '-1F0' is no action"),
        ("0F99999999999", r"column 1: '0F99999999999' is no action"),
        ("", "it has no ranks"),
        ("0F0,0B0\n\n1F0,1B0", "rank 1 has no actions"),
        ("0F0,0F1,0B0\n", r"stage 0 has no backward of micro-batch 1: add 0B1, or 0I1"),
        ("0F0,0I0\n", "stage 0 has 0I0, but no gradients of weights for"),
        ("0F0,0B0,1B0\n1F0\n", "1F0 on rank 1, but stage 1 is on rank 0"),
        ("0F0,0B0\n2F0,2B0\n", "it names stage 2, but no stage 1"),
    ],
)
def test_bad_file(text: str, message: str) -> None:
    with pytest.raises(DistIRError, match=message):
        read_csv(text)
