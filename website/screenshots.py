"""
Takes the picture of the page of `distir explore` in the documentation, with Chromium of
the system: `python -m website.screenshots` writes docs/figures/explore.png.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from website.drawings import FIGURES
from website.widths import browser

_MARK = b"\x89PNG\r\n\x1a\n"

_SETTINGS = (
    "model=gpt&size=1.6B&cluster=dgx-h100&d=2&t=2&p=2&zero=1&checkpoint=full&k=8"
)
_OTHERS = ("d=8", "d=8&zero=3", "d=4&t=2", "d=2&t=4&checkpoint=full", "p=8&k=8")
"""Plans that are looked at before, so that there is a front."""


def _show(page: Any, url: str) -> None:
    """Opens a page and waits for the answer."""
    page.goto(url)
    page.wait_for_selector("main[aria-busy=false]")


def take(path: Path) -> None:
    """Writes the picture to `path`. Needs playwright and Chromium."""
    from playwright.sync_api import sync_playwright

    words = ["-m", "distir.tools.cli", "explore", "--port", "0"]
    with TemporaryDirectory(prefix="distir-") as folder:
        running = subprocess.Popen(
            [sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip().partition("?")[0]
            with sync_playwright() as api:
                # Fewer colours, a smaller file.
                chromium = browser(api, "--disable-lcd-text")
                size = {"width": 1180, "height": 1010}
                page = chromium.new_page(viewport=size, color_scheme="light")
                page.set_default_timeout(120_000)
                model = "model=gpt&size=1.6B&cluster=dgx-h100"
                for plan in _OTHERS:
                    _show(page, f"{address}?{model}&{plan}")
                _show(page, f"{address}?{_SETTINGS}")
                path.write_bytes(with_few_colours(page.screenshot()))
                chromium.close()
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(20)


def with_few_colours(content: bytes) -> bytes:
    """
    Returns a PNG file of 8 bits a channel without interlacing, as Chromium writes it, with
    at most 256 colours: the most frequent ones, and for the others the nearest of these.
    """
    chunks = dict[bytes, bytes]()
    at = len(_MARK)
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        chunks[kind] = chunks.get(kind, b"") + data
        at += size + 12
    width, height, _, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    pixels = _unfiltered(zlib.decompress(chunks[b"IDAT"]), width, height, colour)
    colours, places, counts = np.unique(
        pixels[..., :3].reshape(-1, 3), axis=0, return_inverse=True, return_counts=True
    )
    kept = np.argsort(-counts, kind="stable")[:256]
    palette = colours[kept].astype(int)
    apart = ((colours[:, None].astype(int) - palette) ** 2).sum(axis=2)
    indices = apart.argmin(axis=1)[places].astype(np.uint8).reshape(height, width)
    rows = np.hstack([np.zeros((height, 1), np.uint8), indices])
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return _MARK + b"".join(
        struct.pack(">I", len(data)) + kind + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", palette.astype(np.uint8).tobytes()),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        )
    )  # fmt: skip


def _unfiltered(data: bytes, width: int, height: int, colour: int) -> Any:
    """Returns the pixels of a PNG file, of which each row is written as differences."""
    deep = {2: 3, 6: 4}[colour]
    rows = np.frombuffer(data, np.uint8).reshape(height, width * deep + 1)
    found = np.zeros((height + 1, width + 1, deep), np.uint8)
    for y, row in enumerate(rows, start=1):
        kind, given = int(row[0]), row[1:].reshape(width, deep)
        above = found[y - 1]
        if kind in (0, 2):
            found[y, 1:] = given + (above[1:] if kind == 2 else 0)
            continue
        for x in range(1, width + 1):
            left, up, corner = (
                v.astype(int) for v in (found[y, x - 1], above[x], above[x - 1])
            )
            if kind == 1:
                guess = left
            elif kind == 3:
                guess = (left + up) // 2
            else:
                a, b, c = (
                    abs(up - corner),
                    abs(left - corner),
                    abs(left + up - 2 * corner),
                )
                guess = np.where(
                    (a <= b) & (a <= c), left, np.where(b <= c, up, corner)
                )
            found[y, x] = (given[x - 1] + guess) % 256
    return found[1:, 1:]


if __name__ == "__main__":
    take(FIGURES / "explore.png")
