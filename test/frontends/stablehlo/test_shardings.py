"""Shardings of Shardy and GSPMD in files of StableHLO, and what cannot be a request."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.utils.exceptions import ParseError

from distir.errors import DistIRError
from distir.frontends.stablehlo.file import import_stablehlo_file
from distir.frontends.stablehlo.gspmd import read_gspmd
from distir.frontends.stablehlo.sdy import read_sdy
from distir.frontends.stablehlo.sharding import Annotation, Sharding


def gspmd(*texts: str) -> tuple[object, list[Sharding | None]]:
    return read_gspmd([Annotation("argument 0", text) for text in texts])


def sdy(*texts: str) -> tuple[object, list[Sharding | None]]:
    meshes = {"mesh": (("a", 2), ("b", 4)), "other": (("a", 8),), "empty": ()}
    return read_sdy([Annotation("argument 0", text) for text in texts], meshes)


def test_tiles_in_rows_and_in_columns_have_one_mesh() -> None:
    axes, found = gspmd(
        "{devices=[2,4]<=[8]}",
        "{devices=[4,2]<=[2,4]T(1,0)}",
        "{devices=[8,1]<=[8]}",
        "{devices=[1,8]0,4,1,5,2,6,3,7}",
        "{replicated}",
        "",
    )
    assert axes == (("axis0", 2), ("axis1", 4))
    dims = [None if own is None else own.dims for own in found]
    rows, columns = ("axis0",), ("axis1",)
    assert dims == [
        (rows, columns),
        (columns, rows),
        (rows + columns, ()),
        ((), columns + rows),
        (),
        None,
    ]
    assert all(own.fixed == {"axis0", "axis1"} for own in found if own is not None)


def test_a_mesh_is_cut_where_shardings_cut_it() -> None:
    axes, found = gspmd("{devices=[8]<=[8]}", "{devices=[2,4]<=[8] last_tile_dims={replicated}}")  # fmt: skip
    assert axes == (("axis0", 2), ("axis1", 4))
    assert found[0] is not None and found[0].dims == (("axis0", "axis1"),)
    assert found[1] is not None and found[1].dims == (("axis0",),)


@pytest.mark.parametrize(
    "texts, why",
    [
        (["{devices=[4]0,1,3,2}"], "no grid"),
        (["{maximal device=0}"], "no layout can express"),
        (["{devices=[2,2]<=[4] last_tile_dims={manual}}"], "no layout can express"),
        (["{devices=[2,3]<=[6]}", "{devices=[3,2]<=[6]}"], "no common mesh"),
    ],
)
def test_tiles_without_a_layout_are_refused(texts: list[str], why: str) -> None:
    with pytest.raises(DistIRError, match=why):
        gspmd(*texts)


def test_closed_dimensions_fix_all_axes() -> None:
    axes, found = sdy(
        '@mesh, [{"a", "b"}, {}]',
        '@mesh, [{"b", ?}, {?}]p1',
        '@mesh, [{?}, {}], replicated={"a"}',
        'mesh<["a"=2, "b"=4]>, [{}, {"b"}]',
        "@empty, []",
        "",
    )
    assert axes == (("a", 2), ("b", 4))
    assert found == [
        Sharding((("a", "b"), ()), frozenset("ab")),
        Sharding((("b",), ()), frozenset("b")),
        Sharding(((), ()), frozenset("a")),
        Sharding(((), ("b",)), frozenset("ab")),
        Sharding((), frozenset()),
        None,
    ]


@pytest.mark.parametrize(
    "texts, why",
    [
        (['@mesh, [{"b":(1)2}]'], "a part of axis 'b'"),
        (['@mesh, [{}], unreduced={"a"}'], "stay unreduced"),
        (['@nowhere, [{"a"}]'], "mesh @nowhere, which the file does not declare"),
        (['@mesh, [{"a"}]', '@other, [{"a"}]'], "lower the function with one mesh"),
    ],
)
def test_shardings_without_a_layout_are_refused(texts: list[str], why: str) -> None:
    with pytest.raises(DistIRError, match=why):
        sdy(*texts)


FILE = """
module @jit_f {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=2]>
  func.func public @main(%arg0: tensor<8x8xf32> SHARDED) -> tensor<8x8xf32> {
    BODY
    return %0 : tensor<8x8xf32>
  }
}
"""


def refusal(path: Path, body: str, sharded: str = "") -> str:
    path = path / "f.mlir"
    path.write_text(FILE.replace("BODY", body).replace("SHARDED", sharded))
    with pytest.raises((DistIRError, ParseError)) as error:
        import_stablehlo_file(path)
    return str(error.value)


def test_more_axes_than_distribute_has_are_refused(tmp_path: Path) -> None:
    body = "%0 = stablehlo.negate %arg0 : tensor<8x8xf32>"
    sharding = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>}'
    assert "axes x, y, z of its mesh do the same" in refusal(tmp_path, body, sharding)


def test_pretty_shard_map_is_refused(tmp_path: Path) -> None:
    body = """
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}, {}]>]
      out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%arg1: tensor<4x8xf32>) {
      sdy.return %arg1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>"""
    assert "sdy.manual_computation is shard_map" in refusal(tmp_path, body)
