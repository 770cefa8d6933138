"""
`distir doctor`: lists the installed libraries with their versions, and recommends next
steps.
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # it has no arguments


def run(arguments: argparse.Namespace) -> int:
    from distir.system.installation import examined
    from distir.tools.reports.reporting import progress

    del arguments
    with progress("looking at what is installed"):
        found = examined()
    width = max(len(part.name) for part in found.parts)
    for part in found.parts:
        print(f"{part.name:<{width}}  {part.state}")
    print()
    for step in found.steps:
        print(f"- {step}")
    return 0 if found.works else 1
