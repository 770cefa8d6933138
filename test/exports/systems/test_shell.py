"""Commands of shell scripts, read without running them."""

from __future__ import annotations

import pytest

from distir.errors import DistIRError
from distir.exports.systems.launcher import launch_of, sbatch_devices
from distir.exports.systems.shell import Script


def words(text: str, **given: str) -> list[str]:
    return [word.text for word in Script(text, "a.sh", given).commands[-1]]


def test_variables_arrays_and_continued_lines():
    text = """
GPUS=8
NODES=${SLURM_NNODES:-"4"}
WORLD=$(($GPUS * NODES))
LIST=(
    --one $GPUS  # a comment
    # --left-out
    --two "a b"
)
LIST+=(--three)
TEXT="--four 4 \\
    --five"
run ${LIST[@]} $TEXT "${LIST[@]}" --world=$WORLD \\
    --path $DATA/x 2>&1 >log
"""
    items = ["--one", "8", "--two"]
    assert words(text) == [
        *("run", *items, "a", "b", "--three", "--four", "4", "--five"),
        *(*items, "a b", "--three", "--world=32", "--path", "$DATA/x"),
    ]
    assert words(text, SLURM_NNODES="2")[-3] == "--world=16"


def test_conditions():
    text = """
A=8
if [ -n "${KEY}" ]; then B=1; elif [[ $A -eq 8 ]] && [ "$A" != 9 ]; then B=2
else B=3; fi
if [ -z "$KEY" ] || [ $A = 7 ]; then C=1; fi
run $B $C
"""
    assert words(text) == ["run", "2", "1"]
    script = Script("if python -c pass; then A=1; fi\nrun $A", "a.sh")
    assert "cannot be decided" in script.notes[0]


def test_lines_are_those_of_the_script():
    script = Script('A=(\n  --x 1\n  --y 2\n)\nB="--z \\\n  3"\nrun ${A[@]} $B', "a.sh")
    assert {w.text: w.line for w in script.commands[-1]} == {
        "run": 7, "--x": 2, "1": 2, "--y": 3, "2": 3, "--z": 5, "3": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x\nrun 'a", "line 2: a quote ' is not closed"),
        ("A=(\n--x", "the script ends before"),
        ("run ${A", "is not closed"),
        ("case $A in\na) x;;\nesac", "line 1: `case` is not understood"),
    ],
)
def test_what_cannot_be_read(text: str, message: str):
    with pytest.raises(DistIRError, match=r"a\.sh") as error:
        Script(text, "a.sh")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=4 a.py --x", 32),
        ("torchrun --nproc_per_node=2 a.py", 2),
        ("python -m torch.distributed.launch --nproc_per_node 8 --nnodes 2 a.py", 16),
        ("deepspeed --num_gpus 4 --num_nodes 2 a.py", 8),
        ("srun -N 4 --ntasks-per-node=8 python a.py", 32),
        ("accelerate launch --num_processes 16 --num_machines 2 a.py", 16),
        ("mpirun -np 12 python a.py", 12),
        ("python a.py", 0),
    ],
)
def test_devices_of_launchers(line: str, devices: int):
    [command] = Script(line, "a.sh").commands
    launch = launch_of(command, "a.sh")
    assert launch.devices == devices and launch.script == "a.py"


def test_a_number_of_devices_that_is_none():
    [command] = Script("torchrun --nproc-per-node $N a.py", "a.sh").commands
    with pytest.raises(DistIRError, match=r"line 1: --nproc-per-node .*--set N=N"):
        launch_of(command, "a.sh")


def test_sbatch():
    text = "#SBATCH --nodes=8\n#SBATCH --gres=gpu:a100:4\n"
    assert sbatch_devices(text) == (4, 8)
