"""
Reads and writes option files in JSON, YAML and TOML. Nested options are named by paths.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from distir.errors import DistIRError
from distir.exports.systems.system import Document


def read_options(text: str, path: str, kind: str) -> Document:
    """
    Returns the options in the text of a file. `kind` is `json`, `yaml` or `toml`;
    `path` names the file in messages. An option's name is its path in the file, with
    dots between the keys. Raises DistIRError if the text cannot be parsed or is not a
    mapping of names to values.
    """
    try:
        if kind == "json":
            data: Any = json.loads(text)
        elif kind == "toml":
            data = tomllib.loads(text)
        else:
            data = _yaml(text)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise DistIRError(f"{path} cannot be read as {kind.upper()}: {why}") from error
    if not isinstance(data, dict):
        raise DistIRError(f"{path} holds no options, but {str(data)[:40]!r}")
    values: dict[str, Any] = {}
    _flatten("", data, values)
    where = {name: f"{path}{_line(text, name)}: {name}" for name in values}
    return Document(path, values, where)


def _yaml(text: str) -> Any:
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise DistIRError(
            "YAML is read with PyYAML; install it, for example by pip install pyyaml"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _flatten(prefix: str, data: Mapping[Any, Any], found: dict[str, Any]) -> None:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _flatten(f"{name}.", value, found)  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[name] = value


def _line(text: str, name: str) -> str:
    """
    Returns ", line N" for the line in `text` that sets the option `name`, or "" if
    there is no such line.
    """
    key = re.escape(name.rsplit(".", 1)[-1])
    match = re.search(rf"(?m)^[ \t{{,\[]*[\"']?{key}[\"']?\s*[:=]", text)
    if match is None:
        return ""
    return f", line {text.count(chr(10), 0, match.end()) + 1}"


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """
    Returns options, named by paths with dots, as the nested dictionaries of a file.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        inner = found
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def json_text(values: Mapping[str, Any]) -> str:
    """Returns options, named by paths with dots, as the text of a JSON file."""
    return json.dumps(nested(values), indent=2) + "\n"


def toml_text(values: Mapping[str, Any]) -> str:
    """
    Returns options as the text of a TOML file. The options are named by paths with
    dots; all but the last component of a path name the option's table. Leaves out
    options that are None.
    """
    tables: dict[str, list[str]] = {}
    for name, value in values.items():
        if value is None:
            continue
        table, _, key = name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {_toml(value)}")
    parts = [
        (f"[{table}]\n" if table else "") + "\n".join(lines) + "\n"
        for table, lines in sorted(tables.items(), key=lambda t: bool(t[0]))
    ]
    return "\n".join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


def yaml_text(values: Mapping[str, Any]) -> str:
    """Returns options, named by paths with dots, as the text of a YAML file."""
    return "\n".join(_yaml_lines(nested(values), "")) + "\n"


def _yaml_lines(data: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            inner: Any = value
            lines += [f"{indent}{key}:", *_yaml_lines(inner, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {_yaml_value(value)}")
    return lines


def _yaml_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value!r}" if "." in repr(value) else f"{value:.1e}"
    return json.dumps(value)
