"""Tests of JAX in an environment of its own, with 8 devices (`make test-jax`)."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
pytest.importorskip("jax", reason="jax is installed by `make test-jax`")
