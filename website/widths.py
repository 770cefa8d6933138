"""
Looks at the site in a browser 1,280 pixels wide, with Chromium of the system. `make docs`
runs it: code and tables that scroll sideways, pages that are too wide and pictures that are
missing are errors. Without Chromium nothing is looked at.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

SITE = Path(__file__).parents[1] / "build" / "site"

_LOOK = """() => {
    const wide = (element) => element.scrollWidth > element.clientWidth + 1;
    const found = [];
    if (wide(document.documentElement)) found.push("the page is too wide");
    for (const code of document.querySelectorAll("article pre, article pre > code"))
        if (wide(code)) found.push("code scrolls: " + code.innerText.slice(0, 60));
    for (const table of document.querySelectorAll("article .md-typeset__scrollwrap"))
        if (wide(table)) found.push("a table scrolls: " + table.innerText.slice(0, 60));
    for (const image of document.querySelectorAll("article img"))
        if (!image.naturalWidth) found.push("no picture: " + image.getAttribute("src"));
    return found;
}"""


def browser(api: Any, *options: str) -> Any:
    """Starts Chromium of the system, by playwright's `api`."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return api.chromium.launch(
        executable_path=shutil.which("chromium"), args=[*options, *sandbox]
    )


def problems(site: Path) -> list[str]:
    """Returns complaints about the pages of a site, each with the page's path."""
    from playwright.sync_api import sync_playwright

    found: list[str] = []
    with sync_playwright() as api:
        running = browser(api)
        page = running.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(120_000)
        for path in sorted(site.rglob("*.html")):
            if "gallery" in path.relative_to(site).parts:
                continue  # reports, which are pages of their own
            page.goto(path.as_uri())
            name = path.relative_to(site).as_posix()
            found += [
                f"{name}: {' '.join(text.split())}" for text in page.evaluate(_LOOK)
            ]
        running.close()
    return found


def main() -> int:
    """Prints all complaints. Returns the exit code."""
    if shutil.which("chromium") is None:
        print("no Chromium: nobody looked at the widths of pages")
        return 0
    found = problems(SITE)
    print("\n".join(found) if found else "nothing scrolls sideways at 1,280 pixels")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
