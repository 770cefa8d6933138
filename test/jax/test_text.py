"""The generic text of every form of a program is MLIR: upstream's own parser reads it."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func  # func.func is read as itself, not as unknown
from xdsl.dialects.builtin import ModuleOp

from distir.dialects import get_all_dialects
from distir.text import ProgramParser, new_context
from distir.tools import distir_opt

FILES = Path(__file__).parents[1] / "filecheck"

MLP, TRAINED = "distribute/mlp.mlir", "differentiate{loss=mse optimizer=adam}"
STAGES = "propagate-sharding,partition{lower=false},search-stages{p=2}"

FORMS = {
    "sequential": (MLP, ""),
    "trained": (MLP, TRAINED),
    "annotated": (MLP, f'{TRAINED},add-mesh{{axes="d=2","t=2"}},tensor-parallel'),
    "distributed": (MLP, f"{TRAINED},distribute{{d=2 t=2 zero=2}}"),
    "pipeline": (MLP, f"{TRAINED},distribute{{p=2 k=2}}"),
    "projected": (MLP, f"{TRAINED},distribute{{d=2 t=2 zero=2}},project{{rank=1}}"),
    "schedule": ("apply-schedule/rewrites.mlir", ""),
    "scheduled": ("apply-schedule/requests.mlir", "apply-schedule"),
    "kernels": ("kernel/ops.mlir", ""),
    "planned": ("search-stages/skips.mlir", f"data-parallel{{axis=k}},{STAGES}"),
    "torch": ("lower-steps/messages.mlir", "fuse-operators,reuse-operands"),
    "old": ("collective/old_text.mlir", ""),
}


def printed(*arguments: str) -> str:
    """Returns the output of distir-opt in generic form."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(out),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        distir_opt.main([*arguments, "--print-op-generic"])
    assert not end.value.code, errors.getvalue()
    return out.getvalue()


def read_upstream(text: str) -> str:
    """Returns generic text as upstream MLIR prints it after reading it."""
    assert func.FuncOp
    context = ir.Context()
    context.allow_unregistered_dialects = True
    with context:
        module = ir.Module.parse(text)
        assert module.operation.verify()
        return module.operation.get_asm(print_generic_op_form=True)


def read(text: str) -> ModuleOp:
    return ProgramParser(new_context(), text).parse_module()


def commands() -> list[tuple[Path, list[str]]]:
    """Returns the runs of distir-opt in the lit tests that print programs."""
    found: list[tuple[Path, list[str]]] = []
    for file in sorted(FILES.rglob("*.mlir")):
        for run in re.findall(r"RUN: (distir-opt %s .*)", file.read_text("utf-8")):
            words = shlex.split(
                run.replace("2>&1", "").replace("2>/dev/null", ""), posix=True
            )
            end = next((i for i, w in enumerate(words) if w in ("|", "\\")), len(words))
            words = words[2:end]
            others = {"-t", "--verify-diagnostics", "--print-op-generic", ">/dev/null"}
            if not others.intersection(words) and not re.search(r"\\|%t", run):
                found.append((file, words))
    return found


@pytest.mark.parametrize("form", FORMS)
def test_upstream_reads_every_form(form: str) -> None:
    file, passes = FORMS[form]
    text = printed(str(FILES / file), *(["-p", passes] if passes else []))
    # Upstream sorts attributes, and has no names of values.
    assert read(read_upstream(text)).is_structurally_equivalent(read(text))


def test_upstream_reads_every_program_of_the_lit_tests() -> None:
    known = set[str]()
    for file, words in commands():
        for text in printed(str(file), *words).split("// -----"):
            if text.strip():
                read_upstream(text)
                known |= set(re.findall(r'"([a-z]\w*)\.[\w.]+"\(', text))
    # Each of our dialects is in one of these programs.
    assert known >= get_all_dialects().keys() - {"dist"}
