"""
The page of `distir explore` in a browser: Chromium of the system, driven by Playwright. The
tests skip themselves where one of them is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.command_line import succeed

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright (pip install 'distir[dev]')"
)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None, reason="needs Chromium (apt-get install chromium)"
    ),
]

TINY = "--layers 4 --d-model 32 --heads 4 --vocab 64 --batch 16 --seq 16 --training"
ANSWERED = "main[aria-busy=false]"


class Served:
    """A running `distir explore` in a folder with a program."""

    def __init__(self, folder: Path):
        self.folder = folder
        succeed("build", "gpt", *TINY.split(), "-o", folder / "tiny.mlir")
        words = ["explore", "tiny.mlir", "--cluster", "dgx-h100", "--port", "0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "distir.tools.cli", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def status(self, key: str) -> int:
        """A number of the process, as the system counts it: kB, or threads."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{key}:\s+(\d+)", text, re.M)
        assert found, key
        return int(found[1])

    def shell(self, command: str) -> str:
        """Runs a command in a shell whose `distir` is that of this environment."""
        path = self.folder / "bin"
        path.mkdir(exist_ok=True)
        tool = path / "distir"
        tool.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m distir.tools.cli "$@"\n'
        )
        tool.chmod(0o755)
        environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def end(self) -> str:
        """Ends it like Ctrl-C and returns what it wrote to stderr."""
        self.process.send_signal(signal.SIGINT)
        try:
            _, errors = self.process.communicate(timeout=20)
        finally:
            self.process.kill()
        assert self.process.returncode == 0
        return errors


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(tmp_path_factory.mktemp("explore"))
    try:
        yield running
    finally:
        errors = running.end()
    assert errors == ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as api:
        # The sandbox needs another user than root.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = api.chromium.launch(executable_path=BROWSER, args=options)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    """An empty page, which must not have errors in its console at the end."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened, errors = context.new_page(), list[str]()
    opened.set_default_timeout(60_000)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on(
        "console",
        lambda message: (
            errors.append(message.text) if message.type == "error" else None
        ),
    )
    opened.on(
        "response",
        lambda answer: errors.append(answer.url) if answer.status >= 400 else None,
    )
    yield opened
    context.close()
    assert errors == []


def show(page: Any, served: Served, query: str = "") -> None:
    page.goto(f"{served.url.partition('?')[0]}{f'?{query}' if query else ''}")
    wait(page)


def wait(page: Any) -> None:
    page.wait_for_selector(ANSWERED)


def numbers(page: Any) -> tuple[str, str]:
    """The step time and the peak memory that the page shows."""
    step, memory = (
        page.inner_text(f"[data-number={name}] b") for name in ("step-time", "memory")
    )
    return step, memory


def press(page: Any, label: str, keys: str) -> None:
    """Presses keys on the slider of a setting, and waits for the answer."""
    page.get_by_role("slider", name=label, exact=True).press(keys)
    wait(page)


def test_settings_change_numbers_that_a_shell_finds_too(page: Any, served: Served):
    show(page, served, "d=8")
    seen = [numbers(page)]
    press(page, "tensor", "ArrowRight")  # the data degree becomes 4
    seen.append(numbers(page))
    page.get_by_label("ZeRO stage").select_option("1")
    wait(page)
    seen.append(numbers(page))
    page.get_by_label("recomputation").select_option("full")
    wait(page)
    seen.append(numbers(page))
    assert len(set(seen)) == 4
    page.get_by_role("button", name="Copy the command").click()
    page.get_by_role("button", name="Copied").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    assert command == (
        "distir simulate tiny.mlir --cluster dgx-h100 -d 4 -t 2 --zero 1 --checkpoint full"
    )
    printed = served.shell(command)
    step, memory = seen[-1]
    assert printed.startswith(f"step time {step}, ")
    assert re.search(rf" {memory}( \(.*\))? of 80 GB", printed)
    # The address is the state, in another page and in the one before.
    url = page.url
    assert url.endswith(
        "?model=tiny.mlir&cluster=dgx-h100&d=4&t=2&zero=1&checkpoint=full"
    )
    page.go_back()
    wait(page)
    assert numbers(page) == seen[2]
    page.goto(url)
    wait(page)
    assert numbers(page) == seen[-1]


def test_a_model_is_built(page: Any, served: Served):
    query = "model=gpt&layers=2&d_model=32&heads=2&vocab=64&seq=8&batch=8&d=2"
    show(page, served, query)
    press(page, "batch", "ArrowRight")
    command = page.inner_text("#command")
    assert command.startswith("distir build gpt") and " --batch 16 " in command
    assert served.shell(command).startswith(f"step time {numbers(page)[0]}, ")
    page.get_by_label("model", exact=True).select_option("vit")
    wait(page)
    assert page.inner_text("#title") == "vit base on dgx-h100"
    assert "seq" not in page.url and numbers(page)[0]


def changes() -> Iterator[tuple[str, str]]:
    """Labels and values of settings, one change after another, no state twice."""
    now: dict[str, str] = {}
    policies = ("none", "full", "selective", "products", "whole", "offload")
    for k, policy, t, zero in product("12", policies, "12", "0123"):
        wanted = {"micro-batches -k": k, "recomputation": policy}
        wanted |= {"tensor -t": t, "ZeRO stage": zero}
        for label, value in wanted.items():
            if now.get(label) != value:
                now[label] = value
                yield label, value


def test_a_hundred_changes_leave_nothing_behind(page: Any, served: Served):
    show(page, served, "d=8")
    several = changes()
    seen = set[str]()

    def change(count: int) -> None:
        for _ in range(count):
            label, value = next(several)
            setting = page.get_by_label(label, exact=True)
            if "-" in label[-2:]:
                setting.fill(value)
            else:
                setting.select_option(value)
            wait(page)
            seen.add(page.url)

    change(20)
    memory, threads = served.status("VmRSS"), served.status("Threads")
    elements = page.evaluate("document.querySelectorAll('*').length")
    change(100)
    assert len(seen) > 80  # so that most were simulated
    grown = served.status("VmRSS") - memory
    print(f"{memory} kB and {threads} threads, then {grown} kB more")
    assert served.status("Threads") <= threads
    assert grown < 20_000
    # Of the page itself only the drawing of the plans grows.
    assert page.evaluate("document.querySelectorAll('*').length") < elements + 400


def test_only_the_last_of_many_changes_is_answered(page: Any, served: Served):
    show(page, served, "d=8&overlap=on")
    slider = page.get_by_role("slider", name="tensor", exact=True)
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft") * 5:
        slider.press(key)
    wait(page)
    assert page.url.endswith("&d=2&t=4&overlap=on")
    assert "-d 2 -t 4 --overlap" in page.inner_text("#command")
    last = numbers(page)
    show(page, served, "d=2&t=4&overlap=on")
    assert numbers(page) == last


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("d=-1", "'-1' is not a positive whole number"),
        ("cluster=nope", "there is no cluster 'nope' here"),
        ("d=3&t=5", "needs 15 devices"),
        ("k=3", "cannot be split evenly"),
        ("devices=12", "12 is not a multiple of 8"),
        ("model=/etc/passwd", "there is no model '/etc/passwd' here"),
        ("%00=%ff&d=<b>x</b>", "there is no setting"),
        ("d=<img src=x onerror=alert(1)>", "'<img src=x onerror=alert(1)>' is not"),
    ],
)
def test_bad_settings_are_an_error_on_the_page(
    page: Any, served: Served, query: str, message: str
):
    show(page, served, query)
    assert message in page.inner_text("#error")
    assert page.get_by_role("alert").is_visible()
    assert not page.locator("[data-number]").count()
    assert not page.locator("#error *").count()  # it is text
    page.get_by_label("cluster").select_option("dgx-a100")  # and there is a way on
    page.get_by_label("data -d").fill("2")
    page.get_by_label("tensor -t").fill("1")
    page.get_by_label("micro-batches -k").fill("1")
    wait(page)
    assert page.locator("#error").is_hidden() and numbers(page)[0]


def test_a_search_is_followed_stopped_and_used(page: Any, served: Served):
    show(page, served, "d=8&cluster=dgx2")
    page.get_by_role("button", name="Look at other plans").click()
    page.wait_for_selector("#rows tbody tr:nth-child(2)")
    press(page, "tensor", "ArrowRight")  # does not wait for the search
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Look at other plans").wait_for()
    assert re.search(r"\d+ of \d+ plans", page.inner_text("#searched"))
    link = page.locator("#rows a").last
    words = link.inner_text()
    link.click()
    wait(page)
    assert f" {words}" in page.inner_text("#command")
    assert page.locator("#rows tr.now").inner_text().startswith(words)
    dot = page.locator("#front a").first
    address = dot.get_attribute("href")
    dot.focus()
    page.keyboard.press("Enter")
    wait(page)
    assert page.url.endswith(address)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_everything_has_a_name(browser: Any, served: Served, scheme: str):
    for width in (1280, 400):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        opened = context.new_page()
        show(opened, served, "d=2&p=2&k=4")
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        names = opened.evaluate(
            """[...document.querySelectorAll("input, select, button, canvas, a, progress")]
            .map(e => e.getAttribute("aria-label") || e.textContent.trim()
                 || [...(e.labels || [])].map(l => l.textContent).join(" ").trim())"""
        )
        assert len(names) > 20 and all(names)
        opened.keyboard.press("Tab")
        assert opened.evaluate("document.activeElement.textContent") == "To the results"
        background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", background)[:3]))
        assert (brightness > 3 * 128) == (scheme == "light")
        context.close()
