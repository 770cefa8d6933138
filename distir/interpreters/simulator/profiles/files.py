"""
Finds profiles. The `.json` files of `hardware/profiles` are the built-in profiles; the
name of a file is the name of its profile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distir.dialects.device import ClusterOp, KindOp
from distir.errors import DistIRError
from distir.hardware import FOLDER, built_in_or_file
from distir.interpreters.simulator.profiles.profile import Profile

_FOLDER = FOLDER / "profiles"

AUTO = "auto"
"""The name that stands for the profiles that a cluster's kinds of devices name."""

NONE = "none"
"""
The name that stands for no profile: devices and links perform as in their data sheets.
"""


def profile_names() -> list[str]:
    """Returns the names of the built-in profiles."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(name_or_path: str | Path) -> Profile:
    """
    Returns the built-in profile `name_or_path`, or the profile in the file at that
    path. If the file names another profile as its `base`, the fields of the file
    replace fields of the base. Raises DistIRError if the profile cannot be read.
    """
    path = _path_of(str(name_or_path))
    return Profile.parse(_name_of(path), _data(path, ()))


def _name_of(path: Path) -> str:
    return path.stem if path.parent == _FOLDER else str(path)


def _data(path: Path, above: tuple[Path, ...]) -> Any:
    """
    Returns the data of a profile's file, merged with the data of its base. `above`
    holds the files that led to `path`: each file names the next one as its base. Raises
    DistIRError if a profile is its own base.
    """
    if path in above:
        raise DistIRError(
            f"profile {_name_of(path)} is its own base; take it from another one"
        )
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DistIRError(f"{path} is not a text file in UTF-8") from error
    except OSError as error:
        raise DistIRError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DistIRError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(data, dict) or "base" not in data:
        return data
    base = data.pop("base")
    if not isinstance(base, str):
        raise DistIRError(
            f"profile {_name_of(path)}: base must be the name of a profile"
        )
    return _merged(_data(_path_of(base), (*above, path)), data)


def _merged(base: Any, own: Any) -> Any:
    """
    Returns the fields of both JSON objects, merged at every depth. Fields of `own` take
    precedence over fields of `base`.
    """
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    return {
        **base,
        **{key: _merged(base.get(key), value) for key, value in own.items()},
    }


def _path_of(name: str) -> Path:
    return built_in_or_file(name, "profile", _FOLDER, profile_names(), ".json")


def load_profiles(
    names: Sequence[str | Path | Profile], cluster: ClusterOp
) -> list[Profile]:
    """
    Returns the profiles for the kinds of devices of a cluster. Each of `names` is a
    profile, a built-in name, a file, or `auto` for the profiles that the cluster's
    kinds name. Returns an empty list if `names` is empty or is the single name `none`.
    Raises DistIRError if a profile cannot be read.
    """
    if NONE in map(str, names):
        if len(names) > 1:
            raise DistIRError(
                "the profile none stands for data sheets alone; leave it out, or the other "
                "profiles"
            )
        return []
    found: list[Profile] = []
    for name in names:
        if isinstance(name, Profile):
            found.append(name)
        elif str(name) == AUTO:
            found += [load_profile(_named(kind, cluster)) for kind in cluster.kinds]
        else:
            found.append(load_profile(name))
    return list({profile.name: profile for profile in found}.values())


@dataclass(frozen=True)
class ProfileChoice:
    """
    The profiles that a command uses. `names` can be passed to `load_profiles`. If the
    command looked for profiles and found none, `lacking` is the reason, for the user.
    """

    names: tuple[str, ...]
    lacking: str = ""

    @staticmethod
    def of(given: Sequence[str], cluster: ClusterOp) -> ProfileChoice:
        """
        Returns the profiles that the user named in `given`. If `given` is empty,
        returns the profiles that the cluster's kinds of devices name. Raises
        DistIRError if a profile that a kind names cannot be read.
        """
        if given:
            return ProfileChoice(tuple(given))
        name = cluster.sym_name.data
        for kind in cluster.kinds:
            if kind.profile is None:
                return ProfileChoice(
                    (), f"device kind @{kind.sym_name.data} of @{name} names no profile"
                )
        load_profiles([AUTO], cluster)
        return ProfileChoice((AUTO,))


def _named(kind: KindOp, cluster: ClusterOp) -> str:
    if kind.profile is None:
        raise DistIRError(
            f"device kind @{kind.sym_name.data} of cluster @{cluster.sym_name.data} "
            f"names no profile; name one of {', '.join(profile_names())}, or a file"
        )
    return kind.profile.data
