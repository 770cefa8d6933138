"""Packages of these tests are kept in a folder of their own, which all of them share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A fresh folder of packages."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DISTIR_CACHE", str(tmp_path_factory.mktemp("packages")))
