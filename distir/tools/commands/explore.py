"""
`distir explore`: a page in the browser that simulates the model and plan chosen there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from distir.program.options import EntryOptions
from distir.tools.arguments.cluster import add_cluster_arguments, add_profile_argument
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.distribution import add_distribution_arguments
from distir.tools.explore.options import ExploreOptions

_CLUSTER = "dgx-h100"
"""The cluster that the page begins with if none is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "programs",
        type=Path,
        nargs="*",
        metavar="model.mlir",
        help="sequential programs; without one, the page has the models of `distir build`",
    )
    add_cluster_arguments(parser, required=False)
    add_profile_argument(parser)
    add_options(parser, EntryOptions)
    add_distribution_arguments(parser)
    add_options(parser, ExploreOptions)


def run(arguments: argparse.Namespace) -> int:
    from distir.errors import DistIRError

    try:
        import starlette  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import uvicorn  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise DistIRError(
            f"the page needs the package {error.name}; pip install 'distir[serve]'"
        ) from None
    from distir.hardware import cluster_names, load_cluster
    from distir.tools.explore.answers import Explorer
    from distir.tools.explore.jobs import Jobs
    from distir.tools.explore.models import KnownPrograms, read_files
    from distir.tools.explore.server import HOST, Server, application, bound_socket
    from distir.tools.explore.state import Setup, query_of
    from distir.tools.reports.reporting import progress

    cluster = arguments.cluster or _CLUSTER
    load_cluster(cluster, arguments.devices)  # so that errors are told here
    with progress("reading the programs"):
        programs = KnownPrograms(read_files(arguments.programs))
    setup = Setup(
        programs.files,
        cluster,
        own_cluster="" if cluster in cluster_names() else cluster,
        profile=tuple(arguments.profile),
        entry=arguments.entry,
    )
    query = query_of(arguments, setup)
    jobs = Jobs()
    explorer = Explorer(setup, programs)
    listening = bound_socket(arguments.port)
    url = f"http://{HOST}:{listening.getsockname()[1]}/{f'?{query}' if query else ''}"
    server = Server(application(jobs, explorer.answer, explorer.search), listening)
    server.start()
    print(f"{url}\nCtrl-C ends it.", flush=True)
    if arguments.browser:
        _open(url)
    try:
        jobs.run()
    except KeyboardInterrupt:
        print()
    finally:
        server.stop()
    return 0


def _open(url: str) -> None:
    """Opens a page in a browser, if this terminal belongs to a desktop."""
    import os
    import sys
    import webbrowser

    has_desktop = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if has_desktop and sys.stdout.isatty():
        webbrowser.open(url)
