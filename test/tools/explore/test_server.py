"""The server of the page: requests of this machine's browser, and of nobody else."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import failure, succeed

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from distir.interpreters.simulator.reports.html_report import TEMPLATES
from distir.tools.explore.answers import Explorer
from distir.tools.explore.jobs import Jobs
from distir.tools.explore.models import KnownPrograms, read_files
from distir.tools.explore.server import HOST, Server, application, bound_socket
from distir.tools.explore.state import Setup

TINY = "--layers 2 --d-model 32 --heads 4 --vocab 64 --batch 8 --seq 16 --training"
PAGE = Path(sys.modules["distir.tools.explore.server"].__file__ or "").parent / "page"


def get(
    port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, http.client.HTTPMessage, str]:
    """Requests a page. Returns the status, the headers and the text of the answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def parts(text: str) -> dict[str, Any]:
    """All parts of an answer in one."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        found |= json.loads(line)
    return found


def serve(programs: KnownPrograms, script: Callable[[int], None]) -> None:
    """
    Serves the page, which computes in this thread, while `script` has the port in
    another one.
    """
    jobs, listening = Jobs(), bound_socket(0)
    explorer = Explorer(Setup(programs.files, "dgx-h100"), programs)
    server = Server(application(jobs, explorer.answer, explorer.search), listening)
    errors: list[BaseException] = []

    def act() -> None:
        try:
            script(listening.getsockname()[1])
        except BaseException as error:  # is raised in the thread of the test
            errors.append(error)
        finally:
            jobs.stop()

    thread = threading.Thread(target=act)
    server.start()
    thread.start()
    try:
        jobs.run()
    finally:
        thread.join()
        server.stop()
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> KnownPrograms:
    path = tmp_path_factory.mktemp("explore") / "tiny.mlir"
    succeed("build", "gpt", *TINY.split(), "-o", path)
    return KnownPrograms(read_files([path]))


def test_requests_and_answers(programs: KnownPrograms):
    def script(port: int) -> None:
        status, headers, text = get(port, "/?d=<script>alert(1)</script>")
        assert status == 200 and headers["Content-Type"].startswith("text/html")
        assert (
            text == (PAGE / "explore.html").read_text()
        )  # nothing of the URL is in it
        assert "script-src 'self';" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        for name in re.findall(r'(?:src|href)="(/\w[\w.]*)"', text):
            assert get(port, name)[0] == 200, name

        status, headers, text = get(port, "/answer?d=2&t=2")
        assert status == 200 and headers["Content-Type"] == "application/x-ndjson"
        found = parts(text)
        assert found["numbers"]["devices"] == 4 and found["report"]
        for bad in ("d=-1", "cluster=nope", "d=3&t=5", "%00=%ff", "d=" + "9" * 5000):
            status, _, text = get(port, f"/answer?{bad}")
            assert status == 200 and parts(text)["error"], bad
            assert "Traceback" not in text
        assert parts(get(port, "/search?d=x")[2])["error"]

        # A name that another site's owner lets point here.
        assert get(port, "/answer?d=2", {"Host": f"evil.example:{port}"})[0] == 400
        assert get(port, "/", {"Host": "evil.example"})[0] == 400
        assert get(port, "/", {"Host": f"localhost:{port}"})[0] == 200
        for site in ("cross-site", "same-site"):
            own = {"Sec-Fetch-Site": site}
            assert get(port, "/answer?d=2", own)[0] == 403
            assert get(port, "/", own)[0] == 200  # a link that one follows
        assert get(port, "/answer?d=2", {"Sec-Fetch-Site": "same-origin"})[0] == 200

        for path in ("/../explore.py", "/page/explore.js", "/etc/passwd", "/%2e%2e/"):
            assert get(port, path)[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            assert get(port, "/answer?d=2", method=method)[0] == 405

    serve(programs, script)


def test_a_new_request_of_a_page_replaces_its_last_one(programs: KnownPrograms):
    def script(port: int) -> None:
        page = {"X-Client": "a page"}
        connection = http.client.HTTPConnection(HOST, port, timeout=60)
        # A model that takes far longer to build than the test may take.
        long = "/answer?model=gpt&layers=10000&d_model=8&heads=1&vocab=8&seq=8"
        connection.request("GET", long, headers=page)
        assert connection.getresponse().readline()
        assert "numbers" in parts(get(port, "/answer?t=2", page)[2])
        connection.close()
        # And one that closes the connection is not computed for any more.
        connection.request("GET", long, headers={"X-Client": "another"})
        assert connection.getresponse().readline()
        connection.close()
        assert "numbers" in parts(get(port, "/answer?t=4", page)[2])

    serve(programs, script)


def test_the_command(tmp_path: Path):
    succeed("build", "gpt", *TINY.split(), "-o", tmp_path / "tiny.mlir")
    words = ["-m", "distir.tools.cli", "explore", "tiny.mlir", "--cluster", "dgx-a100"]
    running = subprocess.Popen(
        [sys.executable, *words, "-t", "2", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        url = running.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?(.*)", url)
        assert found and found[2] == "model=tiny.mlir&cluster=dgx-a100&t=2"
        answer = parts(get(int(found[1]), f"/answer?{found[2]}")[2])
        assert answer["numbers"]["devices"] == 2
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
        assert (running.returncode, errors) == (0, "")
    finally:
        running.kill()
        running.wait()


def test_what_it_cannot_serve_is_an_error(tmp_path: Path):
    assert "tiny.mlir: No such file" in failure("explore", tmp_path / "tiny.mlir")
    assert "no built-in cluster 'nope'" in failure("explore", "--cluster", "nope")
    assert "not a multiple of 8" in failure("explore", "--devices", "12")
    assert "there is no port 99999" in failure("explore", "--port", "99999")
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port} of 127.0.0.1" in failure("explore", "--port", str(port))


def test_without_the_packages_of_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'distir[serve]'" in failure("explore")


def test_the_script_finds_its_elements():
    """And the page has no script and no style of its own, which its policy refuses."""
    text = (PAGE / "explore.html").read_text("utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    script = (PAGE / "explore.js").read_text("utf-8")
    script += (TEMPLATES / "drawings.js").read_text("utf-8")
    wanted = set(re.findall(r'\bby\("([^"]+)"\)', script)) - {"data"}
    assert wanted and wanted <= set(ids)
    assert "innerHTML" not in script and "eval(" not in script
    assert (
        " style=" not in text and "<style" not in text and " on" + "click" not in text
    )
    assert "http://" not in text and "https://" not in text
    assert "https://" not in script
