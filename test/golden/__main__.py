"""
The golden record: `make golden`, or `python -m golden [--only TEXT] [--write] [--texts DIR]`.

Makes every row again and compares it with the record that is committed. Prints what differs,
with exit code 1 if anything does. `--write` makes it the record. `--texts` writes programs,
packages and results that the digests are of to a folder: those of two commits can be
compared with diff.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Compares the record with what is made now."""
    from golden.record import Row, all_cases, differences, made, recorded, write

    parser = argparse.ArgumentParser(prog="python -m golden", description=__doc__)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--write", action="store_true", help="make it the record")
    parser.add_argument("--texts", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if arguments.only in case.name]
    begin, rows = time.monotonic(), dict(recorded())
    kept = {name: row for name, row in rows.items() if arguments.only in name}
    rest = {name: row for name, row in rows.items() if name not in kept}
    new: dict[str, Row] = {}
    for name, row in made(cases, arguments.jobs, arguments.texts):
        new[name] = row
        if arguments.write:  # one case that fails does not cost the others
            write(rest | kept | new)
    lines = differences(kept, new)
    for line in lines:
        print(line)
    print(
        f"{len(new)} cases in {time.monotonic() - begin:.0f} s, {len(lines)} differences"
    )
    if arguments.write:
        write(rest | new)
        return 0
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
