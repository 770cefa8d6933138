"""Packages of these tests are kept in a folder of their own, as those of test/parallel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="package")
def cache() -> Iterator[None]:
    """A folder of packages that is fresh in each run."""
    folder = Path(os.environ["DISTIR_TEST_MODELS"], "packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTIR_CACHE", str(folder))
        yield
