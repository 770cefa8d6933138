"""The root of a collective is one device of the mesh that the collective runs on."""

from __future__ import annotations

import pytest
from support.programs import parse

from distir.errors import DistIRError
from distir.sharding.verification import verify_distribution

MESHES = """
device.mesh @wide on @box <d = 2, t = 2> [0 to 4]
device.mesh @first on @box <> [0]
device.mesh @outside on @box <> [7]
device.mesh @two on @box <t = 2> [0 to 2]
"""


def broadcast(root: str, axes: str) -> str:
    source, target = (f"tensor<4xf32, #dist.layout<@{m}>>" for m in (root, "wide"))
    return f"""{MESHES}
      func.func @main(%x: {source}) -> {target} {{
        %y = collective.broadcast %x over [{axes}] : {source} -> {target}
        func.return %y : {target}
      }}"""


def reduce(root: str) -> str:
    layout = "#dist.layout<@wide, partial sum {d, t}>"
    source, target = f"tensor<4xf32, {layout}>", f"tensor<4xf32, #dist.layout<@{root}>>"
    return f"""{MESHES}
      func.func @main(%x: {source}) -> {target} {{
        %y = collective.reduce %x over [d, t] : {source} -> {target}
        func.return %y : {target}
      }}"""


def test_one_device_of_the_mesh_is_a_root() -> None:
    verify_distribution(parse(broadcast("first", '"d", "t"')))
    verify_distribution(parse(reduce("first")))


@pytest.mark.parametrize(
    "program",
    [
        broadcast("two", '"d", "t"'),
        broadcast("outside", '"d", "t"'),
        broadcast("first", '"t"'),
        reduce("two"),
        reduce("outside"),
    ],
    ids=["several", "outside", "some axes", "reduce to several", "reduce outside"],
)
def test_other_roots_are_refused(program: str) -> None:
    with pytest.raises(
        DistIRError, match=r"must be one device, which belongs to @wide"
    ):
        verify_distribution(parse(program))
