"""Mutations of files: of their bytes, of the words of a text, of the lines of a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from hypothesis import strategies as st
from support.random_programs import Draw

TOKEN = re.compile(
    r"\"[^\"\n]*\"|[%@#!^]?[A-Za-z_][\w.$-]*|[%@#!^]\d+|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|->|\s+|."
)

_NASTY = """
0 -1 1 2 3 4000000000 99999999999999999999 9223372036854775807 -9223372036854775808
1e308 1e400 -0.0 nan inf NaN Infinity -Infinity true false null 0x7F 1.5 "" "é" "\\00" "
"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa { } [ ] ( ) < > , : = -> % @ # ! ^ * ?
%x %0 @main @mesh @f dense array i64 i1 f32 f16 bf16 index tensor ? x 8x 0x 4294967296x
tensor<*xf32> tensor<8x16xf32> tensor<0xf32> #dist.layout<@mesh> {d} {t} {t:2} partial sum
module builtin.module func.func func.call func.return onnx.Add onnx.Constant dist.send
collective.all_reduce device.mesh device.cluster unit none \x00 ÿ \t ; // /* ^bb0:"""
NASTY = _NASTY.split()
"""Words that are special somewhere."""

NUMBERS = NASTY[: NASTY.index("nan")]
"""Those of them that are numbers."""


def mutated_bytes(draw: Draw, data: bytes) -> bytes:
    """Some bytes changed, left out, put in or repeated; or the file cut short."""
    if not data:
        return draw(st.binary(max_size=8))
    at = draw(st.integers(0, len(data) - 1))
    end = min(len(data), at + draw(st.sampled_from([1, 1, 2, 4, 8, 64])))
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:at] + data[at:end] * draw(st.sampled_from([2, 3, 50])) + data[end:]
    if kind == 3:
        return (
            data[:at]
            + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))])
            + data[at + 1 :]
        )
    if kind == 4:
        other = draw(st.integers(0, len(data) - 1))
        return data[:at] + data[other : other + end - at] + data[end:]
    new = draw(st.sampled_from([b"\x00", b"\xff", b"\x80", b"\n", b'"', b"\xff" * 8]))
    return data[:at] + new + data[end if kind == 5 else at :]


def mutated_tokens(draw: Draw, text: str) -> str:
    """A word changed to another one, left out, repeated, or exchanged with another."""
    words = TOKEN.findall(text)
    places = [i for i, word in enumerate(words) if not word.isspace()]
    if not places:
        return draw(st.sampled_from(NASTY))
    at, other = (draw(st.sampled_from(places)) for _ in range(2))
    kind = draw(st.integers(0, 7))
    if kind == 0:
        del words[at]
    elif kind == 1:
        words.insert(at, words[other])
    elif kind == 2:
        words[at], words[other] = words[other], words[at]
    elif kind == 3:
        groups = _numbers_by_word_before(words, places)
        if groups:
            at = draw(st.sampled_from(draw(st.sampled_from(groups))))
        words[at] = draw(st.sampled_from(NUMBERS))
    elif kind == 4:
        words[at] = draw(st.sampled_from(NASTY))
    elif kind == 5:
        # Another word of the same kind, as a slip of the pen.
        alike = [words[i] for i in places if words[i][0] == words[at][0]]
        words[at] = draw(st.sampled_from(alike))
    elif kind == 6:
        word = words[at]
        cut = draw(st.integers(0, len(word)))
        words[at] = (
            word[:cut]
            + draw(st.sampled_from(["", "x", "0", '"', " "]))
            + word[cut + 1 :]
        )
    else:
        words[at] = words[other]
    return "".join(words)


def _numbers_by_word_before(words: list[str], places: list[int]) -> list[list[int]]:
    """
    The places of numbers, together those behind the same word: a program has a hundred
    sizes of tensors for each number that means something else.
    """
    found: dict[str, list[int]] = {}
    for before, at in pairwise(places):
        if words[at].lstrip("-")[:1].isdigit():
            found.setdefault(words[before], []).append(at)
    return list(found.values())


def mutated_lines(draw: Draw, text: str) -> str:
    """A line left out, repeated or exchanged with another."""
    lines = text.splitlines(keepends=True)
    if not lines:
        return "\n"
    at, other = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = draw(st.integers(0, 2))
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[other])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return "".join(lines)


def _of_text(change: Callable[[Draw, str], str]) -> Callable[[Draw, bytes], bytes]:
    def mutate(draw: Draw, data: bytes) -> bytes:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return mutated_bytes(draw, data)
        return change(draw, text).encode()

    return mutate


_TOKENS, _LINES = _of_text(mutated_tokens), _of_text(mutated_lines)


def mutated_text(draw: Draw, data: bytes) -> bytes:
    """A text with one to three mistakes."""
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        kinds = [_TOKENS, _TOKENS, _TOKENS, _TOKENS, _LINES, mutated_bytes]
        data = draw(st.sampled_from(kinds))(draw, data)
    return data
