"""
The public names for packages of others are those that docs/reference/public-names.md
lists, with the signatures that it lists: whoever changes one sees it there.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "public-names.md"
MODULES = ("distir.extension", "distir.rules", "distir.testing")


def listed(text: str) -> dict[str, list[tuple[str, str]]]:
    """The names of each module of a page, with their signatures, as they are written."""
    tables = re.findall(r"^\| `(distir\.\w+)` \| since \|.*\n((?:\|.*\n)+)", text, re.M)
    row = re.compile(r"^\| `([\w.]+)(\(.*\))?` \| \d+\.\d+ \| .+ \|$", re.M)
    return {module: row.findall(rows) for module, rows in tables}


def signature(found: Any) -> str:
    """The parameters of a function or of a class, without types."""
    whole = inspect.signature(found)
    parameters = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in whole.parameters.values()
        if p.name != "self"
    ]
    return str(
        whole.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    )


def differences(module: str, rows: list[tuple[str, str]]) -> list[str]:
    """How the names of a module differ from those that are listed."""
    public = import_module(module)
    found = [
        f"{name} is not listed"
        for name in set(public.__all__) - {name for name, _ in rows}
    ]
    for name, written in rows:
        own: Any = public
        if name.partition(".")[0] not in public.__all__:
            found.append(f"{name} is not public")
            continue
        for part in name.split("."):
            fields = getattr(own, "__dataclass_fields__", {})
            own = fields[part] if part in fields else getattr(own, part)
        is_value = inspect.isclass(own) or not callable(own)
        if (written or not is_value) and signature(own) != written:
            found.append(f"{name} has the signature {signature(own)}")
        if not inspect.getdoc(own) and not is_value:
            found.append(f"{name} has no docstring")
    return found


def test_the_page_lists_the_public_names() -> None:
    page = listed(PAGE.read_text())
    assert page.keys() == set(MODULES)
    assert sum(map(len, page.values())) > 50
    for module, rows in page.items():
        assert differences(module, rows) == []


def test_a_change_is_noticed() -> None:
    rows = listed(PAGE.read_text())["distir.testing"]
    assert differences("distir.testing", rows[1:])  # a name is new
    assert differences("distir.testing", [*rows, ("gone", "")])
    changed = [(n, s.replace("seed=0", "seed=1")) for n, s in rows]
    assert differences("distir.testing", changed)
