"""Collectives in the HLO text of a compiled function."""

from __future__ import annotations

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder

from distir.errors import DistIRError
from distir.jax.hlo import HloCollective, hlo_collectives

HEAD = "HloModule jit_f, is_scheduled=true, num_partitions=8\n\n"


def collective(line: str) -> HloCollective:
    """Returns the collective of an entry with one line, of a tensor of 4 kB."""
    text = f"""{HEAD}ENTRY %main.1_spmd (p: f32[1024]) -> f32[1024] {{
  %p = f32[16,64]{{1,0}} parameter(0)
  {line}
}}
"""
    [found] = hlo_collectives(text)
    return found


PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
FAR = ((0, 4), (1, 5), (2, 6), (3, 7))
FOURS = ((0, 1, 2, 3), (4, 5, 6, 7))
GROUPS = [
    ("{{0,1},{2,3},{4,5},{6,7}}", PAIRS),
    ("[4,2]<=[8]", PAIRS),
    ("[4,2]<=[2,4]T(1,0)", FAR),
    ("[2,4]<=[8]", FOURS),
    ("mesh['a'=2,'b'=4] {'a'}", FAR),
    ("mesh['a'=4,'b'=1,'c'=2], device_ids=([2,4]T(1,0)) {'a'}", FOURS),
    ("mesh['a'=2,'b'=2,'c'=2] {'b','c'}", FOURS),
    ("{}", (tuple(range(8)),)),
]


@pytest.mark.parametrize("text, groups", GROUPS)
def test_groups(text: str, groups: object) -> None:
    found = collective(
        f"ROOT %r = f32[16,64]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={text}, "
        f"use_global_device_ids=true, to_apply=%add"
    )
    assert found.groups == groups


SENT = [
    ("f32[16,64]{1,0} all-reduce(%p)", 2 * 3 / 4 * 4096),
    ("f32[64,64]{1,0} all-gather(%p), dimensions={0}", 3 * 4096),
    ("f32[4,64]{1,0} reduce-scatter(%p), dimensions={0}", 3 / 4 * 4096),
    ("f32[16,64]{1,0:T(8,128)} all-to-all(%p), dimensions={0}", 3 / 4 * 4096),
    ("(f32[16,64]{1,0}, f32[64,64]{1,0}) all-gather-start(%p)", 3 * 4096),
]


@pytest.mark.parametrize("line, sent", SENT)
def test_bytes(line: str, sent: float) -> None:
    found = collective(f"ROOT %r = {line}, replica_groups=[2,4]<=[8]")
    assert found.sent == (sent,) and found.times == 1


def test_a_permutation_sends_where_the_target_is_another_device() -> None:
    line = "ROOT %r = f32[16,64]{1,0} collective-permute(%p), source_target_pairs="
    assert collective(line + "{{0,1},{1,0},{2,2}}").sent == (4096,)
    assert collective(line + "{{2,2},{3,3}}").sent == (0,)


LOOP = f"""{HEAD}%body.1 (s: (s32[], f32[8], bf16[2,2])) -> (s32[], f32[8], bf16[2,2]) {{
  %s = (s32[], f32[8]{{0}}, bf16[2,2]{{1,0}}) parameter(0)
  %x = f32[8]{{0}} get-tuple-element(%s), index=1
  %y = bf16[2,2]{{1,0}} get-tuple-element(%s), index=2
  %r = (f32[8]{{0}}, /*index=1*/bf16[2,2]{{1,0}}) all-reduce(%x, /*index=1*/%y), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, to_apply=%add, metadata={{op_name="jit(f)/while/(dot_general:jit(g)/add)"}}
  ROOT %t = (s32[], f32[8]{{0}}, bf16[2,2]{{1,0}}) tuple(%s, %x, %y)
}}

ENTRY %main.2 (p: (s32[], f32[8], bf16[2,2])) -> (s32[], f32[8], bf16[2,2]) {{
  %p = (s32[], f32[8]{{0}}, bf16[2,2]{{1,0}}) parameter(0)
  ROOT %w = (s32[], f32[8]{{0}}, bf16[2,2]{{1,0}}) while(%p), condition=%cond, body=%body.1, backend_config={{"known_trip_count":{{"n":"12"}}}}
}}
"""


def test_rounds_of_a_loop_and_tensors_of_a_collective() -> None:
    [found] = hlo_collectives(LOOP)
    assert found.times == 12 and found.sizes == (32, 8)
    assert found.names == ("while/dot_general", "while/jit(g)/add")


def test_texts_that_cannot_be_read_are_errors() -> None:
    with pytest.raises(DistIRError, match="number of rounds"):
        hlo_collectives(LOOP.replace("known_trip_count", "something"))
    with pytest.raises(DistIRError, match="no ENTRY"):
        hlo_collectives("HloModule f")
    with pytest.raises(DistIRError, match="notation"):
        collective("ROOT %r = f32[16,64]{1,0} all-reduce(%p), replica_groups=<new>")
