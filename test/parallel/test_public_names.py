"""What `import distir` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import distir


def test_importing_distir_imports_no_torch_and_no_onnx() -> None:
    script = (
        "import sys, distir\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'onnx', 'xdsl'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_public_names_are_found_and_others_are_not() -> None:
    assert "parallelize" in dir(distir)
    assert callable(distir.parallelize)
    functions = "build check distribute import_model lower run search simulate"
    for name in functions.split():
        assert name in dir(distir) and getattr(distir, name).__name__ == name
    assert callable(distir.Plan.load)
    with pytest.raises(AttributeError, match="no attribute 'paralelize'"):
        distir.paralelize  # type: ignore[attr-defined]  # noqa: B018
