"""
The server of the page. It answers requests of this machine only. It has its own thread,
while the main thread simulates.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distir.errors import DistIRError
from distir.interpreters.simulator.reports.html_report import TEMPLATES
from distir.tools.explore.answers import encoded
from distir.tools.explore.jobs import Job, Jobs, Steps
from distir.tools.explore.jobs import Message as Part

HOST = "127.0.0.1"

_PAGE = Path(__file__).parent / "page"

_FILES = {
    "/": (_PAGE / "explore.html", "text/html"),
    "/explore.css": (_PAGE / "explore.css", "text/css"),
    "/explore.js": (_PAGE / "explore.js", "text/javascript"),
    "/drawings.css": (TEMPLATES / "drawings.css", "text/css"),
    "/drawings.js": (TEMPLATES / "drawings.js", "text/javascript"),
}
"""All files that the server sends, by the path of a URL."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_OWN_SITE = ("same-origin", "none")
"""The values of `Sec-Fetch-Site` of requests by the page, or by a person who types."""

_PATIENCE = 0.05
"""Seconds between two looks at whether a job has begun, or somebody still waits."""

_MOST_JOBS = 32
"""The most requests that are answered at a time."""


class _SafeHeaders:
    """
    Refuses requests from pages of other sites, and adds headers that forbid the browser
    to load anything from other sites.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if scope["type"] == "http" and scope["path"] != "/":
            site = Request(scope).headers.get("sec-fetch-site", "none")
            if site not in _OWN_SITE:
                app = PlainTextResponse("for the page of distir explore only\n", 403)
        await app(scope, receive, send_safely)


def application(
    jobs: Jobs, answer: Callable[[str], Steps], search: Callable[[str], Steps]
) -> Starlette:
    """
    Returns the web application. `answer` and `search` do the work for the query of a
    URL, as jobs in the queue `jobs`.
    """

    def file_of(path: str) -> Route:
        file, kind = _FILES[path]

        async def send_file(request: Request) -> FileResponse:
            del request
            return FileResponse(file, media_type=kind)

        return Route(path, send_file)

    def answers(path: str, work: Callable[[str], Steps], is_urgent: bool) -> Route:
        async def send_answer(request: Request) -> StreamingResponse:
            parts = _parts(request, jobs, work, is_urgent)
            return StreamingResponse(parts, media_type="application/x-ndjson")

        return Route(path, send_answer)

    return Starlette(
        routes=[
            *map(file_of, _FILES),
            answers("/answer", answer, True),
            answers("/search", search, False),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]),
            Middleware(_SafeHeaders),
        ],
    )


async def _parts(
    request: Request, jobs: Jobs, work: Callable[[str], Steps], is_urgent: bool
) -> AsyncGenerator[bytes, None]:
    """
    Yields the parts of an answer as lines of JSON. Cancels the job when the browser
    closes the connection.
    """
    loop, parts = asyncio.get_running_loop(), asyncio.Queue[Part | None]()

    def put(part: Part | None) -> None:
        loop.call_soon_threadsafe(parts.put_nowait, part)

    client = request.headers.get("x-client", "")
    job = Job(client or str(id(request)), work(request.url.query), put, is_urgent)
    jobs.submit(job)
    try:
        while True:
            try:
                part = await asyncio.wait_for(parts.get(), _PATIENCE)
            except TimeoutError:
                if await request.is_disconnected():
                    return
                jobs.press(job)
                continue
            if part is None:
                return
            if part:
                yield encoded(part)
    finally:
        jobs.cancel(job)


def bound_socket(port: int) -> socket.socket:
    """
    Returns a socket at a port that only programs on this machine can reach; 0 stands
    for any free port. Raises DistIRError if the port is not free.
    """
    if port >= 1 << 16:
        raise DistIRError(f"there is no port {port}; choose one below {1 << 16}")
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
        found.listen()  # so that a browser that is early waits
    except OSError as error:
        found.close()
        raise DistIRError(
            f"port {port} of {HOST} cannot be used ({error.strerror}); choose another "
            f"with --port, or --port 0 for any that is free"
        ) from error
    return found


class Server:
    """A web application at a socket, in its own thread."""

    def __init__(self, app: Starlette, listening: socket.socket):
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            server_header=False,
            limit_concurrency=_MOST_JOBS,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="explore", daemon=True
        )

    def start(self) -> None:
        """Starts to answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the server, and waits for its thread."""
        self._server.should_exit = True
        self._thread.join()
