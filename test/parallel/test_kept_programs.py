"""A module is exported once for all plans, and a changed one anew."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from support.parallel_scripts import Frozen, mean_of_absolutes, own_part
from support.thoroughness import IS_THOROUGH
from torch import nn

from distir.frontends.torch import importer
from distir.hardware import load_cluster
from distir.parallel.compilation import (
    Request,
    evaluation_package,
    training_package,
)
from distir.parallel.content import content_key
from distir.parallel.packages import CACHE, LOADED
from distir.planning.distribution.options import DistributionOptions

IMAGES = torch.ones(4, 3, 6, 6)
MAKES = (training_package, evaluation_package) if IS_THOROUGH else (training_package,)


def packages(module: nn.Module, **options: int) -> list[dict[str, bytes]]:
    """The packages of training, and in `make test-all` of evaluation, under a plan."""
    given = DistributionOptions(**options)  # type: ignore[arg-type]
    cluster = str(load_cluster("cpu", given.devices))
    request = Request(mean_of_absolutes, cluster, replace(given, cluster="cpu"))
    return [make(module, (IMAGES,), {"scale": 2.0}, request) for make in MAKES]


def key(module: nn.Module, loss: object = None) -> str | None:
    return content_key("training", module, (IMAGES,), {}, loss)


def test_keys_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions have keys, and code that is in no file has none."""
    known = key(Frozen(), mean_of_absolutes)
    assert known is not None and known == key(Frozen(), mean_of_absolutes)
    assert known != key(Frozen(), own_part)
    changed = Frozen()
    changed.norm.eps = 0.5
    assert known != key(changed, mean_of_absolutes)
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    cells.Net = type("Net", (Frozen,), {"__module__": "cells"})  # type: ignore[attr-defined]
    assert key(cells.Net()) is None
    cells.loss = FunctionType(mean_of_absolutes.__code__, vars(cells))  # type: ignore[attr-defined]
    assert key(Frozen(), cells.loss) is None


def test_keys_do_not_depend_on_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loaded files of the user count, and packages of other programs do not."""
    known, loaded = key(Frozen()), ModuleType("loaded")
    loaded.__file__ = str(tmp_path / "loaded.py")
    Path(loaded.__file__).touch()
    monkeypatch.setitem(sys.modules, f"{LOADED}of_another_plan", loaded)
    assert key(Frozen()) == known
    monkeypatch.setitem(sys.modules, "loaded", loaded)
    assert key(Frozen()) != known


def test_another_plan_exports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[nn.Module] = []
    import_torch = importer.import_torch

    def counted(module: nn.Module, *args: object, **options: object) -> object:
        exported.append(module)
        return import_torch(module, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(importer, "import_torch", counted)
    monkeypatch.setenv(CACHE, str(tmp_path / "first"))
    packages(Frozen(), d=2)
    assert len(exported) == len(MAKES)  # for training and for evaluation
    found = packages(Frozen(), d=2, t=2)
    assert len(exported) == len(MAKES)
    monkeypatch.setenv(CACHE, str(tmp_path / "second"))
    assert found == packages(Frozen(), d=2, t=2)
    assert len(exported) == 2 * len(MAKES)
