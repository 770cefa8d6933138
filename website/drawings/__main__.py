"""Writes all drawings of the documentation (`make drawings`)."""

from __future__ import annotations

from website.drawings import draw, sources

if __name__ == "__main__":
    for source in sources():
        source.with_suffix(".svg").write_text(draw(source), "utf-8")
